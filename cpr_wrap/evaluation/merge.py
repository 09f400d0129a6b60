"""Joins runs of the same model and images: each image keeps the worst that any run found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cpr_wrap.metrics import Origin, Origins, Points, Provenance, RobustnessCurve

_COLUMNS = {
    "outer": "outer_distance",
    "rejected": "rejected_radius",
    "boundary": "boundary_distance",
}
"""Kinds of points, and the records that hold their distances."""


def merge_results(
    curves: Sequence[RobustnessCurve],
    *,
    eps: float | None = None,
    names: Sequence[str] | None = None,
) -> RobustnessCurve:
    """Join curves of the same model and images; each image keeps the worst that any run found.

    Points found at a smaller eps count at a larger one. Points found at a larger eps count at a
    smaller one if they lie within it.

    Args:
        curves: The curves, with points, settings and provenance.
        eps: The budget of the joined curve; by default the largest of all.
        names: Names of the runs; by default their own.

    Returns:
        A curve whose origins say which run each point comes from.

    Example:
        >>> import torch
        >>> from cpr_wrap import Confidence, SelectiveClassifier, robustness_curve
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
        >>> x = torch.rand(2, 1, 2, 2)
        >>> y = network(x).argmax(dim=1)
        >>> model = SelectiveClassifier(network, Confidence(threshold=0.5))
        >>> one, two = (robustness_curve(model, x, y, eps, budget="quick") for eps in (0.02, 0.05))
        >>> merge_results([one, two]).error_at(0.0) >= one.error_at(0.0)
        True
    """
    if len(curves) < 2:
        raise ValueError(f"expected at least two runs to merge, got {len(curves)}")
    head = curves[0]
    called = list(names or [curve.about.name or f"run {n}" for n, curve in enumerate(curves, 1)])
    for curve, name in zip(curves[1:], called[1:], strict=True):
        _check_same(head, curve, called[0], name)
    assert head.points is not None
    assert head.settings is not None
    wanted = eps if eps is not None else max(curve.eps for curve in curves)
    distance: dict[str, Tensor] = {}
    by = {kind: [""] * len(head.records) for kind in ("outer", "rejected")}
    points = {kind: head.points.clean.clone() for kind in by}
    origins = [Origins()] * len(head.records)
    for kind in _COLUMNS:
        distance[kind], nearest = _nearest(curves, kind, wanted)
        for row, place in nearest.items():
            run = curves[place]
            origin = _origin(run, kind, row, called[place], wanted)
            origins[row] = replace(origins[row], **{kind: origin})
            if kind in by:
                by[kind][row] = getattr(run.records, f"{kind}_by")[row]
                points[kind][row] = getattr(run.points, kind)[row]
    records = replace(
        head.records,
        eps=wanted,
        outer_broken=distance["outer"].isfinite(),
        outer_distance=distance["outer"],
        outer_by=tuple(by["outer"]),
        rejected_radius=distance["rejected"],
        rejected_by=tuple(by["rejected"]),
        boundary_distance=torch.minimum(distance["boundary"], distance["outer"]),
        depth=_depth(curves, wanted),
    )
    stages = tuple(text for c in curves if c.settings for text in c.settings.stages)
    return RobustnessCurve(
        records,
        alphas=head.alphas,
        points=Points(clean=head.points.clean, **points),
        origins=tuple(origins),
        passes=tuple(stage for curve in curves for stage in curve.passes),
        settings=replace(head.settings, eps=wanted, budget="merged", stages=stages),
        provenance=_provenance(curves, called),
        about=replace(head.about, name="+".join(dict.fromkeys(called)), command=""),
        calibration=head.calibration,
    )


def _check_same(head: RobustnessCurve, other: RobustnessCurve, first: str, name: str) -> None:
    for curve, called in ((head, first), (other, name)):
        if curve.points is None or curve.settings is None or curve.provenance is None:
            raise ValueError(f"{called}: expected a run with points, settings and provenance")
    a, b = head.provenance, other.provenance
    ours_rule, theirs_rule = (c.settings and c.settings.rule.config for c in (head, other))
    for what, ours, theirs in (
        ("model weights", a and a.weights, b and b.weights),
        ("images", a and a.data, b and b.data),
        ("rule", ours_rule, theirs_rule),
        ("norm", head.records.norm, other.records.norm),
    ):
        if ours != theirs:
            raise ValueError(f"cannot merge {first} and {name}: they differ in {what}")


def _nearest(
    curves: Sequence[RobustnessCurve], kind: str, eps: float
) -> tuple[Tensor, dict[int, int]]:
    """Smallest distances within eps `(N,)`; by row, the place of the curve that has the point."""
    columns = [getattr(curve.records, _COLUMNS[kind]) for curve in curves]
    none = torch.full_like(curves[0].records.outer_distance, torch.inf)
    table = torch.stack([none if column is None else column for column in columns])
    if kind != "boundary":
        table = torch.where(table <= eps, table, torch.inf)
    distance, place = table.min(dim=0)
    known = distance.isfinite().nonzero().flatten()
    return distance, dict(zip(known.tolist(), place[known].tolist(), strict=True))


def _origin(curve: RobustnessCurve, kind: str, row: int, name: str, eps: float) -> Origin | None:
    found: Origin | None = getattr(curve.origins[row], kind) if curve.origins else None
    if found is None:
        return None
    return replace(found, run=found.run or name, alpha=found.alpha * curve.eps / eps)


def _depth(curves: Sequence[RobustnessCurve], eps: float) -> Tensor | None:
    """The deepest mistakes `(N,)` of runs whose points all lie within eps."""
    inside = [curve.records.depth for curve in curves if curve.eps <= eps]
    measured = [depth for depth in inside if depth is not None]
    return torch.stack(measured).amax(dim=0) if measured else None


def _provenance(curves: Sequence[RobustnessCurve], names: Sequence[str]) -> Provenance:
    every = [curve.provenance for curve in curves if curve.provenance is not None]
    return replace(
        every[0],
        engine=min(each.engine for each in every),
        seconds=sum(each.seconds for each in every),
        notes=tuple(dict.fromkeys(note for each in every for note in each.notes)),
        merged=tuple(names),
    )
