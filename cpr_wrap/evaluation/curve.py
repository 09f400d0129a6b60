"""`robustness_curve`: from a selective classifier and images to the curve of robust error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

import cpr_wrap
from cpr_wrap._checks import check_eval_mode, check_labels, check_positive
from cpr_wrap.attacks.adaptive import Stage
from cpr_wrap.attacks.ensemble import BUDGETS, Budget
from cpr_wrap.evaluation import ranks
from cpr_wrap.evaluation.ablation import ablation_table
from cpr_wrap.evaluation.assemble import Finished, details_of, finish, records_of, theory_of
from cpr_wrap.evaluation.batch import auto_batch_size
from cpr_wrap.evaluation.blocks import Images, Work, evaluate_block, split
from cpr_wrap.evaluation.coverage import coverage_summary
from cpr_wrap.evaluation.engine import REVISION
from cpr_wrap.evaluation.progress import Progress, Status, progress_from
from cpr_wrap.evaluation.source import Source, source_of
from cpr_wrap.evaluation.steering import Steering
from cpr_wrap.evaluation.store import Store, network_digest, weights_digest
from cpr_wrap.metrics import PAPER_ALPHAS, RobustnessCurve
from cpr_wrap.selective import SelectiveClassifier

DEFAULT_BLOCK = 128


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
    source = source_of(x, y, indices)
    started = time.perf_counter()
    place = _place(model, source)
    sample = source.block(range(1), *place)
    if source.y is not None:
        check_labels(source.y, len(source), _num_classes(model, sample))
    plan = BUDGETS[budget] if isinstance(budget, str) else budget
    work = Work(
        model=model,
        stages=(*plan.stages(model.rule, eps), *extras),
        eps=eps,
        norm=norm or str(getattr(model.rule, "norm", "Linf")),
        seed=seed,
        batch_size=batch_size or 0,
        steering=Steering(dtype=dtype, compile=compile, channels_last=channels_last),
    )
    size = block_size or DEFAULT_BLOCK
    settings = {"budget": plan.name, "block_size": size, "device": place[0].type, **work.settings()}
    weights = weights_digest(model.base)
    folder = _open(store, settings, model)
    work = replace(work, batch_size=_batch_size(work, sample, folder))
    reporter = progress_from(progress, len(source), len(work.stages) + 1)
    done = _evaluate(work, source, size, place, folder, reporter)
    details = details_of({**settings, "batch_size": work.batch_size}, done, weights, started)
    if ablation:
        details["ablation"] = ablation_table(
            work, [d.images for d in done], [d.outer for d in done], folder, place[0]
        )
    records = records_of(done, eps, work.norm, _reach(work))
    curve = RobustnessCurve(records, alphas=tuple(alphas), details=details)
    details["theory"] = theory_of(curve, model)
    details["risk_coverage"] = coverage_summary(model, curve)
    return curve


def _reach(work: Work) -> float:
    """How far from a rejected input the boundary of the network can be."""
    rule = work.model.rule
    same_norm = getattr(rule, "norm", None) == work.norm
    return float(getattr(rule, "radius", math.inf)) if same_norm else math.inf


def _open(
    store: str | Path | None, settings: dict[str, Any], model: SelectiveClassifier
) -> Store | None:
    if store is None:
        return None
    for stage in settings["stages"]:
        if " at 0x" in stage:
            raise ValueError(
                f"store: {stage} does not tell its settings, so that its work could not be found "
                "again; give its class a __repr__, e.g. by making it a dataclass"
            )
    key = {
        **settings,
        "network": network_digest(model.base),
        "engine": REVISION,
        "version": cpr_wrap.__version__,
    }
    return Store(store, key)


def _batch_size(work: Work, sample: Images, store: Store | None) -> int:
    """The size given, or else the one that a resumed run had, or else what memory allows."""
    # One size for all ranks, though their memories may differ: results depend on it by rounding.
    size = ranks.least(work.batch_size or auto_batch_size(work.model, sample.x))
    return size if store is None else int(store.fix("batch_size", size))


def _evaluate(
    work: Work,
    source: Source,
    block_size: int,
    place: tuple[torch.device, torch.dtype],
    store: Store | None,
    reporter: Progress,
) -> list[Finished]:
    """Evaluate this rank's blocks and gather everybody's, in the data set's order."""
    mine: dict[int, Finished] = {}
    with reporter:
        for number, rows in enumerate(split(len(source), block_size)):
            if number % ranks.world_size() != ranks.rank():
                continue
            with ranks.explain_failure(number):
                images = source.block(rows, *place)
                block, units = evaluate_block(work, images, store, listener=reporter.listen)
            reporter.block_done(block)
            mine[number] = finish(block, units)
    everyone = ranks.gather(mine)
    return [everyone[number] for number in sorted(everyone)]


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
