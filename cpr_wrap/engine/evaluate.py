"""Evaluates blocks: stages in order, each finished unit stored, each cost counted; then rounds."""

from __future__ import annotations

import copy
import sys
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from cpr_wrap._files import digest
from cpr_wrap._source import source_text
from cpr_wrap.attacks.adaptive import Attack, FunctionAttack, Stage
from cpr_wrap.attacks.donors import Donors
from cpr_wrap.attacks.ensemble import MOST_TARGETS
from cpr_wrap.engine import ranks
from cpr_wrap.engine.block import Block, Found, rank_targets
from cpr_wrap.engine.images import Images
from cpr_wrap.engine.precision import NO_ROOM, Precision, is_out_of_memory
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.engine.store import Store, Underway, Unit, changes
from cpr_wrap.geometry import ThreatModel, threat
from cpr_wrap.meter import Passes, count_passes, watch_outputs
from cpr_wrap.metrics.evidence import StageCost
from cpr_wrap.objective import Goal, Targets
from cpr_wrap.rule import RejectionRule
from cpr_wrap.selective import SelectiveClassifier, rule_config

_DOUBTFUL = 0.1  # share of replayed points that may round to another verdict


def stage_text(stage: Stage, *, strict: bool = False) -> str:
    """A text that is the same in every process and differs where the stage or its code does.

    Code that cannot be read is an error if `strict`; the text is without it otherwise.
    """
    text = repr(stage)
    code: Any = stage
    if isinstance(stage, Attack):
        code = stage.objective.terms
    elif isinstance(stage, FunctionAttack):
        text, code = stage.name, stage.function
    elif type(stage).__module__.startswith("cpr_wrap."):
        return text  # the engine's revision stands for our own code
    try:
        return f"{text}#{zlib.crc32(source_text(code).encode()):08x}"
    except ValueError:
        if strict:
            raise
        return text


def _threat_text(norm: str) -> str:
    """A threat model by its name; one from elsewhere with its code too."""
    around = threat(norm)
    ours = type(around).__module__ == ThreatModel.__module__
    return norm if ours else f"{norm} {digest(source_text(around))}"


@dataclass(frozen=True, kw_only=True)
class Work:
    """All that the evaluation of a block depends on beside its images."""

    model: SelectiveClassifier
    stages: tuple[Stage, ...]  # what is done, in order
    eps: float
    norm: str
    seed: int
    batch_size: int  # rows in a batch; 0 while that is open
    precision: Precision  # how searches run the network
    donors: Donors | None = None
    plan: str = "main"  # name of this list of stages among those that share a store

    @cached_property
    def searcher(self) -> SelectiveClassifier:
        """What searches run, made once: compiling a copy for every block would cost more."""
        return self.precision.model(self.model)

    def key(self) -> dict[str, Any]:
        """All of it but the model's weights, as plain data."""
        return {
            "rule": rule_config(self.model.rule),
            "eps": self.eps,
            "norm": _threat_text(self.norm),
            "seed": self.seed,
            "batch_size": self.batch_size or "auto",
            **asdict(self.precision),
            "donors": "" if self.donors is None else self.donors.text,
            "stages": [stage_text(stage, strict=True) for stage in self.stages],
        }

    def block(self, images: Images, given: Found | None = None) -> Block:
        """A block about which nothing is known but accepted mistakes that are `given`."""
        block = Block(
            self.model,
            images.x,
            images.y,
            images.index,
            eps=self.eps,
            norm=self.norm,
            batch_size=self.batch_size,
            precision=self.precision,
            searcher=self.searcher,
            donors=None if self.donors is None else self.donors.to(images.x),
        )
        if given is not None:
            block.found[Goal.ACCEPTED_MISTAKE] = copy.deepcopy(given)
        return block


Listener = Callable[[Block, str, Passes], None]


def evaluate_block(
    work: Work,
    images: Images,
    store: Store | None = None,
    *,
    given: Found | None = None,
    listener: Listener | None = None,
) -> tuple[Block, list[Unit]]:
    """Run all stages on a block, or replay them from the store.

    `given` are accepted mistakes found elsewhere, taken as known from the start (for ablations).
    The listener is called after every unit. Returns the block as the last stage left it, and its
    units.
    """
    block = work.block(images, given)
    units = [] if store is None else _replay(work, block, store)
    if units and store is not None and not _still_holds(block, store):
        store.discard(block.key, work.plan)
        block, units = work.block(images, given), []
    for unit in units:
        if listener is not None:
            listener(block, unit.stage, unit.passes)
    go_on(work, block, units, store, listener)
    return block, units


def go_on(
    work: Work,
    block: Block,
    units: list[Unit],
    store: Store | None,
    listener: Listener | None = None,
) -> None:
    """Do the stages of `work` that a block has not had yet, and append their units."""
    for number in range(len(units), len(work.stages) + 1):
        file = None if store is None else store.file(block.key, work.plan, number)
        unit = None if file is None else Unit.load(file)
        if unit is not None:
            unit.replay(block)
        else:
            unit = _do(block, work, number, file)
            if file is not None:
                unit.save(file)
        units.append(unit)
        if listener is not None:
            listener(block, unit.stage, unit.passes)


def _replay(work: Work, block: Block, store: Store) -> list[Unit]:
    """Bring a block to where the store has it."""
    units: list[Unit] = []
    while len(units) <= len(work.stages):
        unit = Unit.load(store.file(block.key, work.plan, len(units)))
        if unit is None:
            break
        unit.replay(block)
        units.append(unit)
    return units


def _still_holds(block: Block, store: Store) -> bool:
    """Put every replayed point to the model again: what no key can see may have changed."""
    asked, lost = block.doubtful_points()
    if not lost:
        return True
    said = f"{lost} of {asked} stored points in {store.path} do not hold for this model any more"
    few = lost <= max(1.0, _DOUBTFUL * asked)
    then = "; so few can be due to rounding, so they are kept"
    warnings.warn(said + (then if few else ": these images are evaluated again"), stacklevel=2)
    return few


def _do(block: Block, work: Work, number: int, file: Path | None) -> Unit:
    """Do one unit; after running out of memory once more from its beginning, in half batches."""
    before = copy.deepcopy(block.known())
    with count_passes() as passes:
        unit = Underway(block, passes, file)
        while True:
            try:
                with watch_outputs(block.x.device) as flag:
                    name = _run(block, work, number, unit)
                _check_outputs(block, flag)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if block.batch_size == 1:
                    raise RuntimeError(NO_ROOM) from error
                for kind, held in block.known().items():
                    vars(held).update(copy.deepcopy(vars(before[kind])))
                block.batch_size = max(1, block.batch_size // 2)
                unit.state = None
                unit.note = f"out of memory: redone with batches of {block.batch_size}"
    note = "; ".join(filter(None, [unit.note, *sorted(block.notes)]))
    block.notes.clear()
    tensors, origins = changes(block, before, first=number == 0)
    return Unit(
        stage=name,
        passes=passes,
        seconds=unit.seconds,
        tensors=tensors,
        origins=origins,
        note=note,
        batch_size=block.batch_size if note else 0,
    )


def _check_outputs(block: Block, flag: Tensor) -> None:
    """Refuse outputs that are NaN or infinite where a search saw them, not only where it proposes.

    A search takes such a value as none, so that a network that answers nothing would look robust.
    """
    if not bool(flag.isnan()):
        return
    text = "the network's outputs are NaN or infinite for inputs that an attack tried"
    if block.precision.exact:
        raise RuntimeError(f"{text}; such outputs are not an answer")
    block.notes.add(f"{text} in {block.precision.dtype}: robustness may be overstated")


def _run(block: Block, work: Work, number: int, unit: Underway) -> str:
    if number == 0:
        block.judge_clean()
        rank_targets(block, _most_targets(work.stages))
        return "clean"
    stage = work.stages[number - 1]
    run_stage(block, stage, work.seed, state=unit.state, after_tick=unit.after_tick)
    return stage.name


def _most_targets(stages: Sequence[Stage]) -> int:
    """How many target classes the stages can ask for: all, if any attack aims at all."""
    wanted = [MOST_TARGETS]
    for stage in stages:
        if isinstance(stage, Attack) and stage.objective.targets is not Targets.NONE:
            wanted.append(sys.maxsize if stage.targets is None else stage.targets)
    return max(wanted)


def stage_costs(units: Sequence[Sequence[Unit]]) -> tuple[StageCost, ...]:
    """Sum up units of many blocks, stage by stage."""
    rows = []
    for column in zip(*units, strict=True):
        passes = sum((unit.passes for unit in column), Passes())
        rows.append(
            StageCost(
                attack=column[0].stage,
                forwards=passes.forwards,
                backwards=passes.backwards,
                seconds=sum(unit.seconds for unit in column),
                found_outer=sum(unit.changed(Goal.ACCEPTED_MISTAKE) for unit in column),
                found_rejected=sum(unit.changed(Goal.REJECTED) for unit in column),
            )
        )
    return tuple(rows)


Held = dict[int, tuple[Block, list[Unit]]]
"""Blocks of this process by number, with what was done on them."""


@runtime_checkable
class InRounds(Protocol):
    """A budget that continues in rounds after its stages.

    It ends after `patience` rounds in a row that find nothing, one if it does not say.
    """

    @property
    def cap(self) -> float:
        """No round starts after this many passes per image."""
        ...

    def more(self, rule: RejectionRule, eps: float, number: int) -> tuple[Stage, ...]:
        """The stages of a round, from 1 on; none after the last."""
        ...


def run_rounds(
    budget: InRounds,
    work: Work,
    held: Held,
    images: int,
    store: Store | None,
    listener: Listener | None = None,
) -> tuple[Work, str]:
    """Do rounds on the blocks of all processes.

    Whether to go on is decided over all images together, so that a result depends neither on the
    blocks nor on the processes. The blocks of this process, `held`, are changed. Returns the work
    with the stages of all rounds, and why they ended.
    """
    broken, spent = _state(held)
    empty, patience = 0, int(getattr(budget, "patience", 1))
    for number in range(1, 1_000_000):
        if broken == images:
            return work, f"{number - 1} rounds, no image was left"
        if spent >= budget.cap * images:
            return work, f"{number - 1} rounds, stopped at the cap of {budget.cap:,.0f} passes"
        stages = budget.more(work.model.rule, work.eps, number)
        if not stages:
            return work, f"{number - 1} rounds, the most there are"
        work = replace(work, stages=(*work.stages, *stages))
        for place, (block, units) in held.items():
            with ranks.explain_failure(place):
                go_on(work, block, units, store, listener)
        before = broken
        broken, spent = _state(held)
        empty = empty + 1 if broken == before else 0
        if empty == patience:
            break
    return work, f"{number} rounds, the last {empty} of which found nothing more"


def _state(held: Held) -> tuple[int, int]:
    """Images with an accepted mistake, and passes spent, over all processes."""
    broken = sum(int(b.found[Goal.ACCEPTED_MISTAKE].known.sum()) for b, _ in held.values())
    spent = sum(unit.passes.total for _, units in held.values() for unit in units)
    everyone = ranks.gather({ranks.rank(): (broken, spent)}).values()
    return sum(b for b, _ in everyone), sum(s for _, s in everyone)
