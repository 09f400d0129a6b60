"""Joins runs of the same model and images: each image keeps the worst that any run found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cpr_wrap.metrics import Origin, Origins, Points, Provenance, RobustnessCurve

_LAST = "merged"


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
    wanted = eps if eps is not None else max(curve.eps for curve in curves)
    picked = {kind: _nearest(curves, kind, wanted) for kind in ("outer", "rejected", "boundary")}
    distance = {kind: value for kind, (value, _) in picked.items()}
    records = replace(
        head.records,
        eps=wanted,
        outer_broken=distance["outer"].isfinite(),
        outer_distance=distance["outer"],
        outer_by=_by(curves, picked["outer"], "outer_by"),
        rejected_radius=distance["rejected"],
        rejected_by=_by(curves, picked["rejected"], "rejected_by"),
        boundary_distance=torch.minimum(distance["boundary"], distance["outer"]),
        depth=_depth(curves, wanted),
    )
    settings = head.settings
    assert settings is not None
    costs = tuple(stage for curve in curves for stage in curve.passes)
    return RobustnessCurve(
        records,
        alphas=head.alphas,
        points=_points(curves, picked, head),
        origins=_origins(curves, picked, called, wanted),
        passes=costs,
        settings=replace(
            settings,
            eps=wanted,
            budget=_LAST,
            stages=tuple(text for c in curves if c.settings for text in c.settings.stages),
        ),
        provenance=_provenance(curves, called),
        about=replace(head.about, name="+".join(dict.fromkeys(called)), command=""),
        calibration=head.calibration,
    )


_Picked = tuple[Tensor, list[int]]
"""Distances `(N,)`, and which curve each comes from."""


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


def _distances(curve: RobustnessCurve, kind: str) -> Tensor:
    found = curve.records
    if kind == "outer":
        return found.outer_distance
    if kind == "rejected":
        return found.rejected_radius
    if found.boundary_distance is None:
        return torch.full_like(found.outer_distance, torch.inf)
    return found.boundary_distance


def _nearest(curves: Sequence[RobustnessCurve], kind: str, eps: float) -> _Picked:
    table = torch.stack([_distances(curve, kind) for curve in curves])
    if kind != "boundary":
        table = torch.where(table <= eps, table, torch.inf)
    least = table.min(dim=0)
    return least.values, least.indices.tolist()


def _depth(curves: Sequence[RobustnessCurve], eps: float) -> Tensor | None:
    """The deepest mistakes `(N,)` of runs whose points all lie within eps."""
    inside = [curve.records.depth for curve in curves if curve.eps <= eps]
    measured = [depth for depth in inside if depth is not None]
    return torch.stack(measured).amax(dim=0) if measured else None


def _by(curves: Sequence[RobustnessCurve], picked: _Picked, field: str) -> tuple[str, ...]:
    distance, source = picked
    return tuple(
        getattr(curves[place].records, field)[row] if known else ""
        for row, (place, known) in enumerate(zip(source, distance.isfinite().tolist(), strict=True))
    )


def _points(
    curves: Sequence[RobustnessCurve], picked: dict[str, _Picked], head: RobustnessCurve
) -> Points:
    assert head.points is not None
    made = {}
    for kind in ("outer", "rejected"):
        distance, source = picked[kind]
        held = head.points.clean.clone()
        for row, known in enumerate(distance.isfinite().tolist()):
            if known:
                held[row] = getattr(curves[source[row]].points, kind)[row]
        made[kind] = held
    return Points(clean=head.points.clean, **made)


def _origins(
    curves: Sequence[RobustnessCurve],
    picked: dict[str, _Picked],
    names: Sequence[str],
    eps: float,
) -> tuple[Origins, ...]:
    def origin(kind: str, row: int) -> Origin | None:
        distance, source = picked[kind]
        curve = curves[source[row]]
        if not bool(distance[row].isfinite()) or not curve.origins:
            return None
        found: Origin | None = getattr(curve.origins[row], kind)
        if found is None:
            return None
        run = found.run or names[source[row]]
        return replace(found, run=run, alpha=found.alpha * curve.eps / eps)

    count = len(curves[0].records)
    return tuple(
        Origins(**{kind: origin(kind, row) for kind in ("outer", "rejected", "boundary")})
        for row in range(count)
    )


def _provenance(curves: Sequence[RobustnessCurve], names: Sequence[str]) -> Provenance:
    every = [curve.provenance for curve in curves if curve.provenance is not None]
    head = every[0]
    notes = dict.fromkeys(note for each in every for note in each.notes)
    return replace(
        head,
        engine=min(each.engine for each in every),
        seconds=sum(each.seconds for each in every),
        notes=tuple(notes),
        merged=tuple(names),
    )
