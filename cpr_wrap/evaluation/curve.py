"""`robustness_curve`: from a selective classifier and images to the curve of robust error."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

import cpr_wrap
from cpr_wrap._checks import check_eval_mode, check_images, check_labels, check_positive
from cpr_wrap.attacks.adaptive import Stage
from cpr_wrap.attacks.ensemble import BUDGETS, Budget
from cpr_wrap.evaluation import ranks
from cpr_wrap.evaluation.ablation import ablation_table
from cpr_wrap.evaluation.batch import auto_batch_size
from cpr_wrap.evaluation.block import Block, Found
from cpr_wrap.evaluation.blocks import Images, Work, evaluate_block, split, totals
from cpr_wrap.evaluation.progress import Progress, Status, progress_from
from cpr_wrap.evaluation.steering import Steering
from cpr_wrap.evaluation.store import Store, Unit, digest, weights_digest
from cpr_wrap.meter import Passes
from cpr_wrap.metrics import PAPER_ALPHAS, Records, RobustnessCurve, theorems_of
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier, rule_config

DEFAULT_BLOCK = 128


@dataclass(frozen=True)
class Source:
    """Images to be evaluated, given as tensors or as a data set, read block by block.

    Attributes:
        x: Images `(N, ...)`, or a data set of (image, label).
        y: Labels `(N,)` where `x` is a tensor.
        index: Numbers of the images `(N,)`.
    """

    x: Tensor | Dataset[Any]
    y: Tensor | None
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def block(self, rows: range, device: torch.device, dtype: torch.dtype) -> Images:
        """Read some images, check them and move them to the model."""
        if isinstance(self.x, Tensor):
            assert self.y is not None
            x, y = self.x[rows.start : rows.stop], self.y[rows.start : rows.stop]
        else:
            pairs = [self.x[int(self.index[row])] for row in rows]
            x = torch.stack([torch.as_tensor(image) for image, _ in pairs])
            y = torch.tensor([int(label) for _, label in pairs])
            check_images(x)
        index = self.index[rows.start : rows.stop]
        return Images(x=x.to(device, dtype), y=y.to(device).long(), index=index.to(device).long())


def _source(x: Tensor | Dataset[Any], y: Tensor | None, indices: Sequence[int] | None) -> Source:
    if isinstance(x, Tensor):
        if y is None:
            raise TypeError("y: expected labels beside a tensor of images, got None")
        check_images(x)
        check_labels(y, len(x))
        count = len(x)
    else:
        if y is not None:
            raise TypeError("y: expected None beside a data set, which brings its own labels")
        if not hasattr(x, "__len__"):
            raise TypeError(f"x: expected a tensor or a data set with a length, got {type(x)}")
        count = len(x) if indices is None else len(indices)
    index = torch.arange(count) if indices is None else torch.as_tensor(indices)
    if len(index) != count or count == 0:
        raise ValueError(f"indices: expected one for each of {count} images, got {len(index)}")
    return Source(x, y, index)


def robustness_curve(
    model: SelectiveClassifier,
    x: Tensor | Dataset[Any],
    y: Tensor | None = None,
    eps: float = 8 / 255,
    *,
    alphas: Sequence[float] = PAPER_ALPHAS,
    budget: str | Budget = "standard",
    seed: int = 0,
    batch_size: int | None = None,
    block_size: int | None = None,
    store: str | Path | None = None,
    norm: str | None = None,
    indices: Sequence[int] | None = None,
    extras: Iterable[Stage] = (),
    ablation: bool = False,
    progress: bool | Callable[[Status], None] | None = None,
    dtype: str | None = None,
    compile: bool = False,  # noqa: A002 - torch's own name for it
    channels_last: bool = False,
) -> RobustnessCurve:
    """Attack a selective classifier and report its robustness curve.

    Every success is a point that was projected into its ball, judged by the model itself, and
    recorded with its distance; the curve is made of those records and nothing else. It runs on
    the device the model is on, and on all ranks of `torch.distributed` where that is initialised.

    Args:
        model: The selective classifier.
        x: Images `(N, ...)` in [0, 1], or a data set of (image, label).
        y: True classes `(N,)`, if `x` is a tensor.
        eps: Budget of the adversary in pixel units.
        alphas: Where the curve is tabulated; it is defined on all of [0, 1].
        budget: `quick`, `standard`, `paper`, `published`, or a plan of your own.
        seed: Of all random starts.
        batch_size: Rows in a batch; found from free memory if left out.
        block_size: Images that are worked on together, 128 if left out.
        store: A folder for finished work; the same call resumes from it.
        norm: Of the budget; the rule's own, or `Linf`.
        indices: Numbers of the images in their data set.
        extras: Attacks to run after the budget's, e.g. `AdaptiveAutoAttack()`.
        ablation: Also run every attack alone on every image.
        progress: True for a bar, or a function that is told the status.
        dtype: `bf16` or `fp16` to search in that precision.
        compile: Search with a compiled copy of the network.
        channels_last: Search with a copy of the network in that memory format.

    Returns:
        The curve, with settings, versions, digests and pass counts in its `details`.
    """
    check_positive(eps, "eps")
    check_eval_mode(model.base)
    source = _source(x, y, indices)
    plan = BUDGETS[budget] if isinstance(budget, str) else budget
    norm = norm or getattr(model.rule, "norm", "Linf")
    steering = Steering(dtype=dtype, compile=compile, channels_last=channels_last)
    device, own_dtype = _place(model, source)
    sample = source.block(range(1), device, own_dtype)
    classes = _num_classes(model, sample)
    if source.y is not None:
        check_labels(source.y, len(source), classes)
    stages = (*plan.stages(model.rule, eps), *extras)
    settings: dict[str, Any] = {
        "rule": rule_config(model.rule),
        "eps": eps,
        "norm": norm,
        "budget": plan.name,
        "seed": seed,
        "batch_size": batch_size or "auto",
        "block_size": block_size or DEFAULT_BLOCK,
        "dtype": dtype,
        "compile": compile,
        "channels_last": channels_last,
        "device": str(device),
        "stages": [repr(stage) for stage in stages],
    }
    weights = weights_digest(model.base)
    folder = None
    if store is not None:
        folder = Store(store, {**settings, "weights": weights, "version": cpr_wrap.__version__})
    rows = batch_size or auto_batch_size(model, sample.x)
    if folder is not None:
        rows = folder.fix("batch_size", rows)
    work = Work(
        model=model,
        stages=stages,
        eps=eps,
        norm=norm,
        seed=seed,
        batch_size=rows,
        steering=steering,
    )
    started = time.perf_counter()
    reporter = progress_from(progress, len(source), len(stages) + 1)
    done = _evaluate(work, source, block_size or DEFAULT_BLOCK, device, own_dtype, folder, reporter)
    settings["batch_size"] = rows
    details = _details(settings, done, weights, started)
    if ablation:
        details["ablation"] = ablation_table(
            work, [d.images for d in done], [d.outer for d in done], folder, device
        )
    curve = RobustnessCurve(_records(done, eps, norm), alphas=tuple(alphas), details=details)
    details["theory"] = _theory(curve, model)
    return curve


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


def _evaluate(
    work: Work,
    source: Source,
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    store: Store | None,
    reporter: Progress,
) -> list[Finished]:
    """Evaluate this rank's blocks and gather everybody's, in the data set's order."""
    mine: dict[int, Finished] = {}
    with reporter:
        for number, rows in enumerate(split(len(source), block_size)):
            if number % ranks.world_size() != ranks.rank():
                continue
            images = source.block(rows, device, dtype)
            with ranks.explain_failure(number):
                block, units = evaluate_block(work, images, store, listener=reporter.listen)
            reporter.block_done(block)
            mine[number] = _finish(block, units)
    everyone = ranks.gather(mine)
    return [everyone[number] for number in sorted(everyone)]


def _finish(block: Block, units: list[Unit]) -> Finished:
    return Finished(
        images=Images(x=block.x.cpu(), y=block.y.cpu(), index=block.index.cpu()),
        outer=block.found[Goal.ACCEPTED_MISTAKE].cpu(),
        rejected=block.found[Goal.REJECTED].cpu(),
        boundary=block.found[Goal.MISTAKE].cpu(),
        clean_labels=block.clean_labels.cpu(),
        base_labels=block.base_labels.cpu(),
        units=[replace(unit, tensors=_counts(unit)) for unit in units],
    )


def _counts(unit: Unit) -> dict[str, Tensor]:
    """Keep of a unit's tensors only which images it changed: the points are in the block."""
    return {name: t.cpu() for name, t in unit.tensors.items() if name.endswith(".image")}


def _records(done: list[Finished], eps: float, norm: str) -> Records:
    def column(pick: Callable[[Finished], Tensor]) -> Tensor:
        return torch.cat([pick(block) for block in done])

    def names(pick: Callable[[Finished], Found]) -> tuple[str, ...]:
        return tuple(
            origin.attack if origin else "" for block in done for origin in pick(block).origin
        )

    # An accepted mistake is a mistake of the network, so it bounds the distance to the boundary.
    boundary = column(lambda b: torch.minimum(b.boundary.distance, b.outer.distance)).double()
    outer = column(lambda b: b.outer.distance).double()
    return Records(
        index=column(lambda b: b.images.index),
        label=column(lambda b: b.images.y),
        clean_label=column(lambda b: b.clean_labels),
        base_label=column(lambda b: b.base_labels),
        outer_broken=outer.isfinite(),
        outer_distance=outer,
        outer_by=names(lambda b: b.outer),
        rejected_radius=column(lambda b: b.rejected.distance).double(),
        rejected_by=names(lambda b: b.rejected),
        boundary_distance=boundary,
        eps=eps,
        norm=norm,
    )


def _details(
    settings: dict[str, Any], done: list[Finished], weights: str, started: float
) -> dict[str, Any]:
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
            "outer": torch.cat([block.outer.point for block in done]),
            "rejected": torch.cat([block.rejected.point for block in done]),
        },
        "notes": sorted({unit.note for block in done for unit in block.units if unit.note}),
        "ablation": None,
    }


def _provenance(block: Finished) -> list[dict[str, Any]]:
    kinds = {"outer": block.outer, "rejected": block.rejected, "boundary": block.boundary}
    return [
        {kind: found.provenance(row) for kind, found in kinds.items()}
        for row in range(len(block.images.y))
    ]


def _theory(curve: RobustnessCurve, model: SelectiveClassifier) -> dict[str, Any] | None:
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


def _place(model: SelectiveClassifier, source: Source) -> tuple[torch.device, torch.dtype]:
    """The device and precision that the model computes in."""
    for parameter in model.base.parameters():
        if parameter.is_floating_point():
            return parameter.device, parameter.dtype
    if isinstance(source.x, Tensor):
        return source.x.device, source.x.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def _num_classes(model: SelectiveClassifier, sample: Images) -> int:
    with torch.no_grad():
        return model.logits(sample.x).shape[1]
