"""What the charts of the report show: curves with bands and theory, and histograms of radii.

A chart's shapes are SVG paths in the unit square, with 0 at the bottom: the templates stretch them
to whatever size there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cpr_wrap.metrics import ideal_rejected_radius
from cpr_wrap.report.run import Run, grid

COLORS = 8  # the style sheet has as many colors for curves, each in four kinds of dashes
MOST_BANDS = 3  # bands of more runs would cover each other
BINS = 20


def marks(place: int) -> str:
    """Style of the run at some place in the list of runs: a color, and dashes for a second use."""
    return f"c{place % COLORS} d{place // COLORS % 4}"


def by_threat(runs: Sequence[Run]) -> list[tuple[str, list[int]]]:
    """Places of the runs of each threat model: alpha is a share of eps, so each has its axis."""
    groups: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(run.budget, []).append(place)
    return list(groups.items())


def facets(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What tells several runs apart, a value each: what all of them share is left out."""
    settings = [run.curve.settings for run in runs]
    values = {
        "model": [run.curve.about.model or run.name for run in runs],
        "rule": ["" if each is None else each.rule.text or each.rule.name for each in settings],
        "threat": [run.budget for run in runs],
    }
    return {name: each for name, each in values.items() if len(set(each)) > 1}


def curve_shapes(run: Run, *, band: bool = True, theory: bool = True) -> dict[str, str]:
    """The path of each kind of line or area that is drawn for a run, from the back to the front."""
    alphas = grid().tolist()
    shapes = {"band": _area(alphas, *run.band)} if band else {}
    if theory:
        shapes |= {f"theorem{n}": _steps(alphas, ys) for n, ys in run.theory.items()}
    if run.curve.certificate is not None:
        # What is certified and, between it and the curve, what nobody knows.
        low = run.curve.certificate.accuracy_at(grid()).tolist()
        shapes["unknown"] = _area(alphas, low, run.curve.accuracy_at(grid()).tolist())
        shapes["certified"] = _steps(alphas, low)
    return {**shapes, "curve": _steps(*run.curve.jumps())}


def _number(value: float) -> str:
    return f"{value:.5f}".rstrip("0").rstrip(".")


def _steps(xs: Sequence[float], ys: Sequence[float]) -> str:
    """A function that keeps each value up to the next place, from xs[0] to xs[-1]."""
    path, last = f"M{_number(xs[0])} {_number(1 - ys[0])}", ys[0]
    for x, y in zip(xs[1:], ys[1:], strict=True):
        if y != last:
            path += f"H{_number(x)}V{_number(1 - y)}"
        last = y
    return f"{path}H{_number(xs[-1])}"


def _area(xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    """The area between two functions, joined by straight lines."""
    corners = [*zip(xs, high, strict=True), *reversed([*zip(xs, low, strict=True)])]
    return "M" + "L".join(f"{_number(x)} {_number(1 - y)}" for x, y in corners) + "Z"


def read_out(run: Run) -> list[list[float]]:
    """Robustness and its interval at the grid's alphas, for the page's script."""
    rows = zip(run.curve.accuracy_at(grid()).tolist(), *run.band, strict=True)
    return [[round(value, 4) for value in row] for row in rows]


class Counts(NamedTuple):
    """How many images can be made to be rejected at which radius."""

    clean: int  # rejected as they are
    bins: list[int]  # in 20 equal parts of (0, eps]
    none: int  # no rejected point was found

    @classmethod
    def of(cls, radii: Tensor, eps: float) -> Counts:
        """Count radii `(N,)`."""
        # Bins are open on the left: a radius on an edge belongs to the bin that ends there.
        edges = torch.linspace(0, eps, BINS + 1, dtype=torch.float64)
        places = torch.bucketize(radii, edges)
        clean, *bins, none = torch.bincount(places, minlength=BINS + 2).tolist()
        return cls(clean=clean, bins=bins, none=none)


class Radii(NamedTuple):
    """The radii of a run. Images with an accepted mistake are left out: their loss is settled."""

    found: Counts
    ideal: Counts | None  # of an ideal rule; None where no distance to the boundary was measured
    broken: int  # images left out

    @property
    def ticks(self) -> list[int]:
        """Up to six whole numbers from 0 to over the tallest bar."""
        most = max([1, *self.found.bins, *(self.ideal.bins if self.ideal else [])])
        steps = (digit * 10**power for power in range(20) for digit in (1, 2, 5))
        step = next(step for step in steps if 5 * step >= most)
        return list(range(0, most + step, step))

    @property
    def outline(self) -> str:
        """The ideal rule's bins as a path in the unit square."""
        bins = [] if self.ideal is None else self.ideal.bins
        edges = [k / BINS for k in range(BINS + 1)]
        return _steps(edges, [n / self.ticks[-1] for n in [*bins, bins[-1]]]) if bins else ""


def radii_of(run: Run) -> Radii:
    """How near to the images a rejected point was found."""
    records, eps = run.curve.records, run.curve.eps
    whole, ideal = ~records.outer_broken, None
    if theorems := run.curve.theorems():
        bound = theorems[0]
        ideal = Counts.of(ideal_rejected_radius(bound.distance, bound.radius)[whole], eps)
    broken = int(records.outer_broken.sum())
    return Radii(found=Counts.of(run.curve.radii[whole], eps), ideal=ideal, broken=broken)
