"""The charts of the report: robustness curves, and where images can be made to be rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cpr_wrap.metrics import RobustnessCurve, ideal_rejected_radius
from cpr_wrap.report.confidence import grid
from cpr_wrap.report.markup import Markup, join, tag
from cpr_wrap.report.run import Run
from cpr_wrap.report.svg import Frame, area_path, axes, picture, step_path

COLOURS = 8  # the style sheet has as many colours for curves; more curves begin anew
BINS = 20

_SHARES = [(share, f"{100 * share:.0f}%") for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
_CURVE_FRAMES = (
    Frame(width=760, height=420),
    Frame(width=360, height=300, ticks=(0.0, 0.25, 0.5, 0.75, 1.0), kind="narrow"),
)


def colour(place: int) -> str:
    """Style of the curve at some place in the list of runs."""
    return f"c{place % COLOURS}"


def jumps(curve: RobustnessCurve) -> tuple[list[float], list[float]]:
    """Alphas at which the curve falls, with both ends, and its robustness from there on."""
    ends = torch.tensor([0.0, curve.eps], dtype=torch.float64)
    radii = torch.cat([ends, curve.radii[curve.radii.isfinite()]]).unique()
    radii = radii[radii <= curve.eps]
    return (radii / curve.eps).tolist(), (1 - curve.error_within(radii)).tolist()


def curve_chart(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Robustness over alpha with bands, and with the theorems where they apply.

    Args:
        runs: The runs.
        names: What the description calls them.

    Returns:
        The chart in both sizes.
    """
    bands = [run.band for run in runs]
    theory = [_theory(run) for run in runs]
    description = "Robustness with rejection over alpha: " + "; ".join(
        f"{name} falls from {run.curve.accuracy_at(0.0):.1%} to {run.curve.accuracy_at(1.0):.1%}"
        for run, name in zip(runs, names, strict=True)
    )
    pictures = []
    for frame in _CURVE_FRAMES:
        parts = [
            axes(
                frame,
                x_title="α  (rejecting within α·ε is an error)",
                y_title="robustness with rejection",
                y_ticks=_SHARES,
            )
        ]
        for place, (low, high) in enumerate(bands):
            area = area_path(frame, grid().tolist(), low, high)
            parts.append(tag("path", class_=f"band {colour(place)}", d=area))
        for place, lines in enumerate(theory):
            for kind, values in lines:
                path = step_path(frame, grid().tolist(), values)
                parts.append(tag("path", class_=f"{kind} {colour(place)}", d=path))
        for place, run in enumerate(runs):
            path = step_path(frame, *jumps(run.curve))
            parts.append(tag("path", class_=f"curve {colour(place)}", d=path))
        top, bottom = frame.y(frame.top), frame.y(0)
        x = frame.x(0)
        parts.append(tag("line", class_="cursor", x1=x, x2=x, y1=top, y2=bottom))
        pictures.append(picture(frame, description, parts))
    return join(pictures)


def _theory(run: Run) -> list[tuple[str, list[float]]]:
    if run.theorems is None:
        return []
    return [
        (kind, (1 - theorem.error_at(grid())).tolist())
        for kind, theorem in zip(("theorem1", "theorem2"), run.theorems, strict=True)
        if theorem.applicable
    ]


def read_out(run: Run) -> list[list[float]]:
    """Robustness and its interval at the grid's alphas, for the page's script."""
    rows = zip(run.curve.accuracy_at(grid()).tolist(), *run.band, strict=True)
    return [[round(value, 4) for value in row] for row in rows]


def radius_counts(run: Run) -> dict[str, Any]:
    """How many images can be made to be rejected at which radius.

    Only images without an accepted mistake are counted: the search for rejections stops at the
    others, and their loss is settled.

    Returns:
        `clean`: images rejected as they are; `bins`: counts in 20 equal parts of (0, eps]; `none`:
        images without a rejected point; `broken`: images left out; and the same as `ideal_clean`,
        `ideal` and `ideal_none` for the ideal rule, None where no distance was measured.
    """
    records = run.curve.records
    whole = ~records.outer_broken
    found = run.curve.radii[whole]
    counts: dict[str, Any] = {"broken": int(records.outer_broken.sum()), "ideal": None}
    counts["clean"], counts["bins"], counts["none"] = _binned(found, run.curve.eps)
    if run.theorems is not None:
        bound = run.theorems[0]
        ideal = ideal_rejected_radius(bound.distance, bound.radius)[whole]
        # Beyond eps there is nothing for the adversary to reach.
        ideal = torch.where(ideal > run.curve.eps, torch.full_like(ideal, torch.inf), ideal)
        clean, bins, none = _binned(ideal, run.curve.eps)
        counts |= {"ideal_clean": clean, "ideal": bins, "ideal_none": none}
    return counts


def _binned(radii: Tensor, eps: float) -> tuple[int, list[int], int]:
    inside = radii[radii.isfinite() & (radii > 0)]
    # Bins are open on the left: a radius on an edge belongs to the bin that ends there.
    place = torch.ceil(inside / eps * BINS - 1e-9).long() - 1
    bins = torch.bincount(place.clip(0, BINS - 1), minlength=BINS)
    return int((radii == 0).sum()), bins.tolist(), int(radii.isinf().sum())


def radius_chart(run: Run, place: int = 0) -> Markup:
    """Histogram of the smallest rejected radii, with the ideal rule's as a line.

    Args:
        run: The run.
        place: Its place among the runs, for its colour.
    """
    counts = radius_counts(run)
    bins, ideal = counts["bins"], counts["ideal"]
    top, ticks = _count_ticks(max([1, *bins, *(ideal or [])]))
    description = "Histogram of the smallest rejected radius as a share of eps: " + ", ".join(
        f"{count} from {k / BINS:g} to {(k + 1) / BINS:g}" for k, count in enumerate(bins) if count
    )
    pictures = []
    for frame in (
        Frame(width=560, height=290, top=top),
        Frame(width=360, height=240, top=top, ticks=(0.0, 0.25, 0.5, 0.75, 1.0), kind="narrow"),
    ):
        parts = [
            axes(
                frame,
                x_title="smallest rejected radius / ε",
                y_title="images",
                y_ticks=ticks,
            )
        ]
        for k, count in enumerate(bins):
            if count:
                parts.append(_bar(frame, k, count, colour(place)))
        if ideal is not None:
            edges = [k / BINS for k in range(BINS + 1)]
            path = step_path(frame, edges, [*ideal, ideal[-1]])
            parts.append(tag("path", class_="ideal", d=path))
        pictures.append(picture(frame, description, parts))
    return join(pictures)


def _bar(frame: Frame, k: int, count: int, style: str) -> Markup:
    left, right = frame.x(k / BINS) + 1, frame.x((k + 1) / BINS) - 1
    y = frame.y(count)
    label = tag("title", f"{count} images from {k / BINS:g} to {(k + 1) / BINS:g}")
    return tag(
        "rect",
        label,
        class_=f"bar {style}",
        x=float(left),
        y=float(y),
        width=float(right - left),
        height=float(frame.y(0) - y),
    )


def _count_ticks(most: int) -> tuple[float, list[tuple[float, str]]]:
    """A round top of the axis and at most five whole numbers below it."""
    size = 1
    while True:
        for step in (size, 2 * size, 5 * size):
            if 5 * step >= most:
                steps = -(-most // step)
                return float(steps * step), [
                    (float(k * step), str(k * step)) for k in range(steps + 1)
                ]
        size *= 10
