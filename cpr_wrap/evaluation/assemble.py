"""Makes records and details of finished blocks."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import cpr_wrap
from cpr_wrap.evaluation import ranks
from cpr_wrap.evaluation.block import Block, Found
from cpr_wrap.evaluation.blocks import Images, totals
from cpr_wrap.evaluation.store import Unit, digest
from cpr_wrap.meter import Passes
from cpr_wrap.metrics import Records, RobustnessCurve, theorems_of
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A block after its evaluation, on the CPU."""

    images: Images
    outer: Found
    rejected: Found
    boundary: Found
    clean_labels: Tensor
    base_labels: Tensor
    units: list[Unit]


def finish(block: Block, units: list[Unit]) -> Finished:
    """Keep of a block what its results are made of."""
    return Finished(
        images=Images(x=block.x.cpu(), y=block.y.cpu(), index=block.index.cpu()),
        outer=block.found[Goal.ACCEPTED_MISTAKE].cpu(),
        rejected=block.found[Goal.REJECTED].cpu(),
        boundary=_without_points(block.found[Goal.MISTAKE].cpu()),
        clean_labels=block.clean_labels.cpu(),
        base_labels=block.base_labels.cpu(),
        units=[replace(unit, tensors=_counts(unit)) for unit in units],
    )


def _without_points(found: Found) -> Found:
    """Of the boundary only distances are reported; its points would be a third of the memory."""
    found.point = found.point[:0].clone()
    return found


def _counts(unit: Unit) -> dict[str, Tensor]:
    """Keep of a unit's tensors only which images it changed: the points are in the block."""
    return {name: t.cpu() for name, t in unit.tensors.items() if name.endswith(".image")}


def records_of(done: list[Finished], eps: float, norm: str, reach: float) -> Records:
    """The per-image records, from which every figure is computed.

    Args:
        done: The blocks.
        eps: The budget.
        norm: Its norm.
        reach: How far from a rejected input the network's boundary can be: the consistency
            radius, or infinity for rules whose rejections say nothing about the boundary.
    """

    def column(pick: Callable[[Finished], Tensor]) -> Tensor:
        return torch.cat([pick(block) for block in done])

    def names(pick: Callable[[Finished], Found]) -> tuple[str, ...]:
        return tuple(
            origin.attack if origin else "" for block in done for origin in pick(block).origin
        )

    outer = column(lambda b: b.outer.distance).double()
    rejected = column(lambda b: b.rejected.distance).double()
    # An accepted mistake is a mistake of the network, and T(x') of a rejected x' lies across the
    # boundary from x': both bound the distance to the boundary.
    boundary = column(lambda b: b.boundary.distance).double()
    boundary = boundary.minimum(outer).minimum(rejected + reach)
    return Records(
        index=column(lambda b: b.images.index),
        label=column(lambda b: b.images.y),
        clean_label=column(lambda b: b.clean_labels),
        base_label=column(lambda b: b.base_labels),
        outer_broken=outer.isfinite(),
        outer_distance=outer,
        outer_by=names(lambda b: b.outer),
        rejected_radius=rejected,
        rejected_by=names(lambda b: b.rejected),
        boundary_distance=boundary,
        eps=eps,
        norm=norm,
    )


def details_of(
    settings: dict[str, Any], done: list[Finished], weights: str, started: float
) -> dict[str, Any]:
    """Everything needed to repeat the evaluation, and what it cost."""
    passes = totals([block.units for block in done])
    total = sum((unit.passes for block in done for unit in block.units), Passes())
    count = sum(len(block.images.y) for block in done)
    return {
        "settings": {**settings, "threads": torch.get_num_threads()},
        "versions": {
            "cpr_wrap": cpr_wrap.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "digests": {"weights": weights, "data": digest(*(b.images.digest for b in done))},
        "passes": passes,
        "passes_total": {
            "forwards": total.forwards,
            "backwards": total.backwards,
            "per_image": total.total / count,
        },
        "seconds": time.perf_counter() - started,
        "ranks": ranks.world_size(),
        "provenance": [entry for block in done for entry in _provenance(block)],
        "points": {
            "clean": torch.cat([block.images.x for block in done]),
            "outer": _points([block.outer for block in done]),
            "rejected": _points([block.rejected for block in done]),
        },
        "notes": sorted({unit.note for block in done for unit in block.units if unit.note}),
        "ablation": None,
    }


def _points(found: list[Found]) -> Tensor:
    """All points in one tensor; the blocks keep views of it, so that none is held twice."""
    whole = torch.cat([block.point for block in found])
    for block, part in zip(found, whole.split([len(b.point) for b in found]), strict=True):
        block.point = part
    return whole


def _provenance(block: Finished) -> list[dict[str, Any]]:
    kinds = {"outer": block.outer, "rejected": block.rejected, "boundary": block.boundary}
    return [
        {kind: found.provenance(row) for kind, found in kinds.items()}
        for row in range(len(block.images.y))
    ]


def theory_of(curve: RobustnessCurve, model: SelectiveClassifier) -> dict[str, Any] | None:
    """The paper's theorems for this network's boundary distances, where they say something."""
    radius = getattr(model.rule, "radius", None)
    if radius is None:
        return None
    bound, closed = theorems_of(curve.records, radius)
    at = torch.tensor(curve.alphas, dtype=torch.float64)
    return {
        "alphas": list(curve.alphas),
        "theorem1": bound.error_at(at).tolist() if bound.applicable else None,
        "theorem1_why": bound.why,
        "theorem2": closed.error_at(at).tolist() if closed.applicable else None,
        "theorem2_why": closed.why,
    }
