"""`robustness_curve`: from a selective classifier and images to the curve of robust error."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import cpr_wrap
from cpr_wrap._checks import check_count, check_eval_mode, check_number, check_seed
from cpr_wrap._registry import find
from cpr_wrap.attacks.adaptive import GivenPoints, Stage, as_stage
from cpr_wrap.attacks.ensemble import BUDGETS, Budget
from cpr_wrap.engine import ranks
from cpr_wrap.engine.evaluate import Held, InRounds, Work, evaluate_block, run_rounds, stage_costs
from cpr_wrap.engine.images import Images, ImageSource, source_of, split
from cpr_wrap.engine.precision import Precision, auto_batch_size
from cpr_wrap.engine.progress import Progress, Status, busy, guess
from cpr_wrap.engine.stages import REVISION
from cpr_wrap.engine.store import Store, Unit, model_digest, probe, weights_digest
from cpr_wrap.evaluation import assemble
from cpr_wrap.evaluation.certifying import certify as prove
from cpr_wrap.evaluation.preflight import (
    check_threat,
    num_classes,
    place_of,
    preflight,
    try_attacks,
)
from cpr_wrap.evaluation.supplied import DonorsLike, PointsLike, choose_donors, given_points
from cpr_wrap.geometry import ThreatModel, threat
from cpr_wrap.meter import count_passes
from cpr_wrap.metrics import PAPER_ALPHAS, RobustnessCurve
from cpr_wrap.metrics.curve import check_alphas
from cpr_wrap.selective import SelectiveClassifier

_MOST_PER_BLOCK, _LEAST_PER_BLOCK, _BLOCKS = 128, 100, 8


def robustness_curve(
    model: SelectiveClassifier,
    x: Tensor | Dataset[Any] | DataLoader[Any],
    y: Tensor | None,
    eps: float,
    *,
    alphas: Sequence[float] = PAPER_ALPHAS,
    budget: str | Budget = "standard",
    seed: int = 0,
    batch_size: int | None = None,
    block_size: int | None = None,
    store: str | Path | None = None,
    norm: str | ThreatModel | None = None,
    indices: Sequence[int] | Tensor | None = None,
    points: PointsLike | None = None,
    extras: Iterable[Any] = (),
    donors: DonorsLike | None = None,
    ablation: bool = False,
    certify: bool = False,
    progress: bool | Callable[[Status], None] | None = None,
    dtype: str | None = None,
    compile: bool = False,  # noqa: A002 - torch's own name for it
    channels_last: bool = False,
) -> RobustnessCurve:
    """Attack a selective classifier adaptively and compute its robustness curve.

    Every success is a point that was projected into its ball, judged by the model itself, and
    recorded with its distance. The curve is computed from these records alone. It runs on the
    device of the model, and on all ranks of `torch.distributed` if that is initialized.

    Args:
        model: The selective classifier.
        x: Images `(N, ...)` in [0, 1], or a data set or loader of (image, label).
        y: True classes `(N,)`; None for a data set or loader.
        eps: Budget of the adversary in pixel units.
        alphas: Where the curve is tabulated, as shares of eps; it is defined on all of [0, 1].
        budget: `quick`, `standard`, `thorough`, `paper`, `published`, or your own budget, also by
            its address `module:name`.
        seed: Seed of all random starts.
        batch_size: Batch size; by default what fits into memory.
        block_size: Images per block; by default chosen from their number.
        store: A folder for finished work; the same call resumes from it.
        norm: Threat model of the budget; by default the rule's own norm, or `Linf`.
        indices: Numbers of the images in their data set `(N,)`.
        points: Points found elsewhere, judged first: image numbers and points, an earlier curve,
            a result folder, or a file with the arrays `index` and `points`.
        extras: Attacks to run after the budget's: stages, e.g. `AdaptiveAutoAttack()`, or plain
            functions `perturb(model, x, y, eps)`.
        donors: Images of known classes that restarts begin from: images and labels, a `.npz` file,
            or a data set's name. By default, training images of a known data set that the network
            classifies correctly, or else the evaluated images.
        ablation: Also run every attack alone on every image.
        certify: Also prove a lower bound, before the attacks; see `cpr_wrap.certify`.
        progress: True for a bar, or a function that gets a `Status`.
        dtype: `bf16` or `fp16` to search in that precision.
        compile: Search with a compiled copy of the network.
        channels_last: Search with a copy of the network in that memory format.

    Returns:
        The curve, with points, settings, costs and provenance.

    Example:
        >>> import torch
        >>> from cpr_wrap import CPRWrapper
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
        >>> x = torch.rand(3, 1, 2, 2)
        >>> model = CPRWrapper(network, radius=0.01)
        >>> y = network(x).argmax(dim=1)
        >>> curve = robustness_curve(model, x, y, 0.05, budget="quick")
        >>> curve.error_at(0.0) <= curve.error_at(1.0)
        True
    """
    eps, alphas = check_number(eps, "eps"), check_alphas(alphas)
    flags = {"ablation": ablation, "certify": certify}
    flags |= {"compile": compile, "channels_last": channels_last}
    _check_kinds(store, progress, flags, {"batch_size": batch_size, "block_size": block_size})
    around = threat(norm or model.rule.norm or "Linf")
    source = source_of(x, y, indices)
    place = place_of(model, source)
    sample = source.block(range(min(len(source), 8)), *place)
    check_threat(around, eps, sample.x)
    check_eval_mode(model)
    plan = find_budget(budget)
    given = () if points is None else (given_points(points),)
    strangers = _check_given(given[0], source, sample) if given else ()
    work = Work(
        model=model,
        stages=(*given, *plan.stages(model.rule, eps), *_stages(extras)),
        eps=eps,
        norm=around.name,
        seed=check_seed(seed),
        batch_size=int(batch_size or 0),
        precision=Precision(dtype=dtype, compile=compile, channels_last=channels_last),
    )
    size = int(block_size or _block_size(len(source)))
    with count_passes() as spent:
        notes = (*strangers, *preflight(model, sample.x))
        classes = num_classes(model, sample.x)
        source = source.with_classes(classes)
        try_attacks(work.stages, model, source, eps, work.norm, work.seed)
        work = replace(work, donors=choose_donors(donors, model, work.stages, source, classes))
    before = Unit(stage="preflight", passes=spent, seconds=0.0, tensors={}, origins={})
    proven = None
    if certify:  # first, since it is refused for some models
        if work.norm not in ("Linf", "L2"):
            raise ValueError(f"no certificate: bounds are for Linf and L2, got {work.norm}")
        shown = progress is True
        proven = prove(model, source.x, source.y, eps, indices=source.index, progress=shown)
    # Rounds are no part of the stages, so that their settings must be part of the name.
    plan_name = repr(plan) if isinstance(plan, InRounds) else plan.name
    folder = _open(store, work, plan_name, size, sample)
    work = replace(work, batch_size=_batch_size(work, sample, folder))
    reporter = Progress(progress, len(source), guess(work.stages, model.rule))
    work, done, why = _evaluate(work, plan, source, size, place, folder, reporter)
    notes += (why,) if why else ()
    table = None
    if ablation:
        with busy("each attack alone") if progress is True else nullcontext():
            table = assemble.ablation_table(work, done, folder, place[0])
    curve = RobustnessCurve(
        assemble.records_of(done, work),
        alphas=alphas,
        points=assemble.points_of(done),
        origins=assemble.origins_of(done),
        passes=(*stage_costs([[before]]), *stage_costs([block.units for block in done])),
        settings=assemble.settings_of(work, plan.name, size, place[0]),
        provenance=assemble.provenance_of(done, weights_digest(model), notes),
        ablation=table,
        effort=assemble.effort_of(done, work),
        certificate=proven,
    )
    return replace(curve, coverage=assemble.coverage_of(model, curve))


def _check_given(given: GivenPoints, source: ImageSource, sample: Images) -> tuple[str, ...]:
    """Refuse points of another shape; note how many are about other images."""
    shape = tuple(sample.x.shape[1:])
    if len(given.points) and tuple(given.points.shape[1:]) != shape:
        raise ValueError(
            f"points: expected points of the images' shape {shape}, got "
            f"{tuple(given.points.shape[1:])}"
        )
    strange = int((~torch.isin(given.index, source.index)).sum())
    if len(given.index) and not strange:
        return ()
    told = f"{strange} of {len(given.index)} belong to no image of this evaluation"
    note = f"points: {told if strange else 'none are given'}"
    warnings.warn(note, stacklevel=3)
    return (note,)


def find_budget(budget: str | Budget) -> Budget:
    """A plan of attacks: itself, of a registered name, or at an address `module:name`."""
    plan: Any = find(BUDGETS, budget) if isinstance(budget, str) else budget
    found: Budget = plan() if isinstance(plan, type) else plan
    if not (hasattr(found, "name") and callable(getattr(found, "stages", None))):
        raise TypeError(
            f"budget: expected one with a name and stages(rule, eps), got {found!r} for {budget!r}"
        )
    return found


def _check_kinds(
    store: object, progress: object, flags: dict[str, bool], sizes: dict[str, int | None]
) -> None:
    """Refuse what is of another kind than these arguments, before any work."""
    if not (store is None or isinstance(store, str | Path)):
        raise TypeError(f"store: expected a folder, got {store!r:.60}")
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"progress: expected True, False or a function, got {progress!r:.60}")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name}: expected True or False, got {flag!r:.60}")
    for name, size in sizes.items():
        if size is not None:
            check_count(size, name)


def _stages(extras: Iterable[Any]) -> list[Stage]:
    """The attacks that are run after the budget's."""
    if isinstance(extras, str) or not isinstance(extras, Iterable):
        raise TypeError(f"extras: expected a list of attacks, got {extras!r:.60}")
    return [as_stage(extra) for extra in extras]


def _block_size(count: int) -> int:
    """Blocks of equal size, enough for several processes, from the number of images alone.

    Small blocks make small batches, in which every pass takes longer.
    """
    most = max(_LEAST_PER_BLOCK, min(_MOST_PER_BLOCK, math.ceil(count / _BLOCKS)))
    return math.ceil(count / math.ceil(count / most))


def _open(
    store: str | Path | None, work: Work, budget: str, block_size: int, sample: Images
) -> Store | None:
    if store is None:
        return None
    key = {
        **work.key(),
        "budget": budget,
        "block_size": block_size,
        "device": sample.x.device.type,
        "model": model_digest(work.model),
        "engine": REVISION,
        "version": cpr_wrap.__version__,
    }
    for stage in key["stages"]:
        if " at 0x" in stage:
            raise ValueError(
                f"store: {stage} does not tell its settings, so that its work could not be found "
                "again; give its class a __repr__, e.g. by making it a dataclass"
            )
    return Store(store, key, probe(work.model, sample.x[:1]))


def _batch_size(work: Work, sample: Images, store: Store | None) -> int:
    """The size given, or else the one that a resumed run had, or else what memory allows."""
    # One size for all ranks, though their memories may differ: results depend on it by rounding.
    size = ranks.least(work.batch_size or auto_batch_size(work.model, sample.x[:1]))
    return size if store is None else int(store.fix("batch_size", size))


def _evaluate(
    work: Work,
    plan: Budget,
    source: ImageSource,
    block_size: int,
    place: tuple[torch.device, torch.dtype],
    store: Store | None,
    reporter: Progress,
) -> tuple[Work, list[assemble.Finished], str]:
    """Evaluate all ranks' blocks; what was done, the blocks in order, and why rounds ended."""
    blocks = list(split(len(source), block_size))
    mine: dict[int, assemble.Finished] = {}
    held: Held = {}
    why = ""
    with reporter:
        for number in ranks.turns(len(blocks)):
            with ranks.explain_failure(number):
                images = source.block(blocks[number], *place)
                block, units = evaluate_block(work, images, store, listener=reporter.listen)
            if isinstance(plan, InRounds):
                held[number] = (block, units)
            else:
                mine[number] = assemble.finish(block, units)
        if isinstance(plan, InRounds):
            work, ended = run_rounds(plan, work, held, len(source), store, reporter.listen)
            why = f"{plan.name}: {ended}"
            mine = {number: assemble.finish(*block) for number, block in held.items()}
    everyone = ranks.gather(mine)
    return work, [everyone[number] for number in sorted(everyone)], why
