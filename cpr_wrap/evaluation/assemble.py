"""Makes of finished blocks what a result holds: records, evidence, ablation, coverage."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

import cpr_wrap
from cpr_wrap import metrics, noise
from cpr_wrap._files import digest
from cpr_wrap.attacks.adaptive import Attack, GivenPoints, Halving, Stage, goal_of
from cpr_wrap.engine import ranks
from cpr_wrap.engine.block import Block, Found
from cpr_wrap.engine.evaluate import Work, evaluate_block, stage_text
from cpr_wrap.engine.images import Images
from cpr_wrap.engine.precision import is_out_of_memory
from cpr_wrap.engine.stages import REVISION
from cpr_wrap.engine.store import Store, Unit
from cpr_wrap.objective import Goal
from cpr_wrap.rule import RejectionRule, rule_settings
from cpr_wrap.selective import Selection, SelectiveClassifier, network_device


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A block after its evaluation, on the CPU."""

    images: Images
    found: dict[Goal, Found]
    clean_labels: Tensor
    base_labels: Tensor
    units: list[Unit]


def finish(block: Block, units: list[Unit]) -> Finished:
    """Keep of a block what its results are made of."""
    found = {goal: held.to("cpu") for goal, held in block.found.items()}
    # Of the boundary only distances are reported; its points would be a third of the memory.
    found[Goal.MISTAKE].point = found[Goal.MISTAKE].point[:0].clone()
    return Finished(
        images=Images(x=block.x.cpu(), y=block.y.cpu(), index=block.index.cpu()),
        found=found,
        clean_labels=block.clean_labels.cpu(),
        base_labels=block.base_labels.cpu(),
        # Of a unit's tensors only which images it changed: the points are in the block.
        units=[
            replace(u, tensors={k: t.cpu() for k, t in u.tensors.items() if k.endswith(".image")})
            for u in units
        ],
    )


def records_of(done: list[Finished], work: Work) -> metrics.Records:
    """The per-image records, from which every figure is computed."""

    def column(pick: Callable[[Finished], Tensor]) -> Tensor:
        return torch.cat([pick(block) for block in done])

    def distance(goal: Goal) -> Tensor:
        return column(lambda block: block.found[goal].distance).double()

    def names(goal: Goal) -> tuple[str, ...]:
        return tuple(
            origin.attack if origin else "" for block in done for origin in block.found[goal].origin
        )

    outer, rejected = distance(Goal.ACCEPTED_MISTAKE), distance(Goal.REJECTED)
    # An accepted mistake is a mistake of the network, and of a rejected point the boundary may be
    # known to be near: both bound the distance to the boundary.
    rule, boundary = work.model.rule, distance(Goal.MISTAKE).minimum(outer)
    if rule.rejects_near_boundary and rule.norm == work.norm:
        boundary = boundary.minimum(rejected + rule.reach)
    return metrics.Records(
        index=column(lambda b: b.images.index),
        label=column(lambda b: b.images.y),
        clean_label=column(lambda b: b.clean_labels),
        base_label=column(lambda b: b.base_labels),
        outer_broken=outer.isfinite(),
        outer_distance=outer,
        outer_by=names(Goal.ACCEPTED_MISTAKE),
        rejected_radius=rejected,
        rejected_by=names(Goal.REJECTED),
        boundary_distance=boundary,
        eps=work.eps,
        norm=work.norm,
    )


def effort_of(done: list[Finished], work: Work) -> metrics.Effort | None:
    """What stages on a sample of the images found; None where there are none."""
    extra = {s.name: s.sample for s in work.stages if isinstance(s, Attack) and s.sample < 1}
    if not extra:
        return None
    chosen = noise.sampled(torch.cat([b.images.index for b in done]), max(extra.values())).tolist()
    found = [origin for block in done for origin in block.found[Goal.ACCEPTED_MISTAKE].origin]
    new = [o is not None and o.attack in extra for o in found]
    left = [o is None or gained for o, gained in zip(found, new, strict=True)]
    images = sum(wanted and open_ for wanted, open_ in zip(chosen, left, strict=True))
    spent = sum(u.passes.total for block in done for u in block.units if u.stage in extra)
    return metrics.Effort(images=images, broken=sum(new), passes=spent / max(1, images))


def points_of(done: list[Finished]) -> metrics.Points:
    """Images and points of all blocks in one tensor each."""
    return metrics.Points(
        clean=torch.cat([block.images.x for block in done]),
        outer=_joined([block.found[Goal.ACCEPTED_MISTAKE] for block in done]),
        rejected=_joined([block.found[Goal.REJECTED] for block in done]),
    )


def _joined(found: list[Found]) -> Tensor:
    """All points in one tensor; the blocks keep views of it, so that none is held twice."""
    whole = torch.cat([block.point for block in found])
    for block, part in zip(found, whole.split([len(b.point) for b in found]), strict=True):
        block.point = part
    return whole


def origins_of(done: list[Finished]) -> tuple[metrics.Origins, ...]:
    """How every image's points were found."""
    goals = (Goal.ACCEPTED_MISTAKE, Goal.REJECTED, Goal.MISTAKE)
    return tuple(
        metrics.Origins(outer=outer, rejected=rejected, boundary=boundary)
        for block in done
        for outer, rejected, boundary in zip(*(block.found[g].origin for g in goals), strict=True)
    )


def rule_facts(rule: RejectionRule) -> metrics.RuleFacts:
    """What a result says about a rule."""
    kind = type(rule)
    ours = kind.__module__.startswith("cpr_wrap.")
    return metrics.RuleFacts(
        name=rule.name,
        settings=rule_settings(rule),
        text=rule.describe(),
        norm=rule.norm,
        reach=rule.reach,
        forwards=rule.cost.forwards,
        backwards=rule.cost.backwards,
        can_reject=rule.can_reject,
        rejects_near_boundary=rule.rejects_near_boundary,
        address="" if ours else f"{kind.__module__}:{kind.__qualname__}",
    )


def settings_of(work: Work, budget: str, block_size: int, device: torch.device) -> metrics.Settings:
    """How an evaluation is run."""
    return metrics.Settings(
        budget=budget,
        rule=rule_facts(work.model.rule),
        eps=work.eps,
        norm=work.norm,
        seed=work.seed,
        batch_size=work.batch_size,
        block_size=block_size,
        device=device.type,
        threads=torch.get_num_threads(),
        **vars(work.precision),
        stages=tuple(stage_text(stage) for stage in work.stages),
        donors="" if work.donors is None else work.donors.text,
    )


def provenance_of(done: list[Finished], weights: str, notes: tuple[str, ...]) -> metrics.Provenance:
    """Where a result comes from."""
    units = [unit for block in done for unit in block.units]
    seen = [(block.images.x, block.images.y, block.images.index) for block in done]
    return metrics.Provenance(
        versions={
            "cpr_wrap": cpr_wrap.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        engine=REVISION,
        weights=weights,
        data=images_digest(*map(torch.cat, zip(*seen, strict=True))),
        ranks=ranks.world_size(),
        seconds=sum(unit.seconds for unit in units),
        notes=(*notes, *sorted({unit.note for unit in units if unit.note})),
    )


def images_digest(x: Tensor, y: Tensor, index: Tensor) -> str:
    """A digest of images `(N, ...)`, labels `(N,)` and numbers `(N,)`."""
    return digest(x.float(), y.long(), index.long())


class _Tally(NamedTuple):
    """What one attack did to one block."""

    lost: list[int]
    found: int
    passes: int


def ablation_table(
    work: Work, done: Sequence[Finished], store: Store | None, device: torch.device
) -> tuple[metrics.AblationRow, ...]:
    """Run each attack of a plan by itself on all blocks; every rank takes its share of them.

    An outer attack is measured by the robustness at alpha = 0 that it leaves; an inner one by the
    robustness at alpha = 1, given the accepted mistakes of the whole ensemble.
    """
    groups: dict[tuple[Goal, str], list[Stage]] = {}
    for stage in work.stages:
        if isinstance(stage, Halving | GivenPoints) or goal_of(stage) is Goal.MISTAKE:
            continue
        # Stages of one objective are one attack, whatever their settings.
        name = stage.objective.name if isinstance(stage, Attack) else stage.name
        groups.setdefault((goal_of(stage), name), []).append(stage)
    pairs = [(key, number) for key in groups for number in range(len(done))]
    mine: dict[int, _Tally] = {}
    for turn in ranks.turns(len(pairs)):
        (goal, name), number = pairs[turn]
        plan = f"alone-{goal.name}-" + "".join(c if c.isalnum() else "-" for c in name)
        alone = replace(work, stages=tuple(groups[goal, name]), plan=plan)
        with ranks.explain_failure(number):
            mine[turn] = _alone(alone, goal, done[number], store, device)
    everyone, rows = ranks.gather(mine), []
    count = sum(len(block.images.x) for block in done)
    for goal, name in groups:
        parts = [everyone[turn] for turn, (key, _) in enumerate(pairs) if key == (goal, name)]
        lost = tuple(number for part in parts for number in part.lost)
        row = metrics.AblationRow(
            attack=name,
            goal=goal.value,
            alpha=1.0 if goal is Goal.REJECTED else 0.0,
            robustness=1 - len(lost) / count,
            lost=lost,
            found=sum(part.found for part in parts),
            passes_per_image=sum(part.passes for part in parts) / count,
        )
        rows.append(row)
    return tuple(rows)


def _alone(
    work: Work, goal: Goal, done: Finished, store: Store | None, device: torch.device
) -> _Tally:
    outer = done.found[Goal.ACCEPTED_MISTAKE]
    given = None if goal is Goal.ACCEPTED_MISTAKE else outer.to(device)
    block, units = evaluate_block(work, done.images.to(device), store, given=given)
    limit = work.eps if goal is Goal.REJECTED else 0.0
    rejected, found = block.found[Goal.REJECTED], block.found[goal]
    lost = block.found[Goal.ACCEPTED_MISTAKE].known | (rejected.distance <= limit)
    return _Tally(
        lost=block.index[lost].tolist(),
        found=int((found.known & (found.distance > 0)).sum()),
        passes=sum(unit.passes.total for unit in units),
    )


def answers(model: SelectiveClassifier, x: Tensor, batch_size: int = 64) -> Selection:
    """Answers to images `(N, ...)`, on the CPU; in half batches where memory runs out."""
    device = network_device(model.base, x.device)
    try:
        parts = [model(part.to(device)) for part in x.split(batch_size)]
    except (RuntimeError, MemoryError) as error:
        if batch_size == 1 or not is_out_of_memory(error):
            raise
        return answers(model, x, batch_size // 2)
    return Selection(*(torch.cat(column).cpu() for column in zip(*parts, strict=True)))


def risk_coverages(
    model: SelectiveClassifier, curve: metrics.RobustnessCurve, *, batch_size: int = 256
) -> dict[str, metrics.RiskCoverage]:
    """Selective risk as a function of coverage, on clean images and under attack.

    Args:
        model: The selective classifier.
        curve: Its curve, with points.
        batch_size: Images per batch.

    Returns:
        Two curves. `clean` is for the images themselves. In `attacked`, every image is replaced by
        the accepted mistake that was found for it, if any.
    """
    if curve.points is None:
        raise ValueError("expected a curve with its points, got one without")
    found = {}
    for name, x in (("clean", curve.points.clean), ("attacked", curve.points.outer)):
        answer = answers(model, x, batch_size)
        found[name] = metrics.risk_coverage(answer.score, answer.predicted == curve.records.label)
    return found


def coverage_of(
    model: SelectiveClassifier, curve: metrics.RobustnessCurve
) -> metrics.Coverage | None:
    """AURC and AUGRC for rules with a free score; None for the others."""
    if model.rule.cost.total > 1 or not model.rule.can_reject:
        return None
    areas = {
        f"{name}_{area}": getattr(found, area)
        for name, found in risk_coverages(model, curve).items()
        for area in ("aurc", "augrc")
    }
    return metrics.Coverage(**areas)
