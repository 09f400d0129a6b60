"""Evaluates blocks one by one: stages in order, each finished unit stored, each cost counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cpr_wrap.attacks.adaptive import Attack, Stage
from cpr_wrap.attacks.ensemble import MOST_TARGETS
from cpr_wrap.evaluation.batch import is_out_of_memory
from cpr_wrap.evaluation.block import Block, Found, rank_targets
from cpr_wrap.evaluation.engine import run_stage
from cpr_wrap.evaluation.partial import Underway
from cpr_wrap.evaluation.steering import Steering
from cpr_wrap.evaluation.store import Recorder, Store, Unit, digest
from cpr_wrap.meter import Passes, count_passes
from cpr_wrap.objective import Goal, Targets
from cpr_wrap.selective import SelectiveClassifier, rule_config

CLEAN_STAGE = "clean"


def _description(stage: Stage) -> str:
    """A text that is the same in every process and differs where the stage does."""
    code = f"#{stage.objective.fingerprint}" if isinstance(stage, Attack) else ""
    return f"{stage!r}{code}"


@dataclass(frozen=True, kw_only=True)
class Work:
    """All that the evaluation of a block depends on beside its images.

    Attributes:
        model: The selective classifier.
        stages: What is done, in order.
        eps: The budget.
        norm: Its norm.
        seed: The run's seed.
        batch_size: Rows in a batch; 0 while that is open.
        steering: How searches run the network.
        plan: Name of this list of stages among those that share a store.
    """

    model: SelectiveClassifier
    stages: tuple[Stage, ...]
    eps: float
    norm: str
    seed: int
    batch_size: int
    steering: Steering
    plan: str = "main"

    @cached_property
    def searcher(self) -> SelectiveClassifier:
        """What searches run, made once: compiling a copy for every block would cost more."""
        return self.steering.model(self.model)

    def settings(self) -> dict[str, Any]:
        """All of it but the model's weights, as plain data."""
        return {
            "rule": rule_config(self.model.rule),
            "eps": self.eps,
            "norm": self.norm,
            "seed": self.seed,
            "batch_size": self.batch_size or "auto",
            **asdict(self.steering),
            "stages": [_description(stage) for stage in self.stages],
        }


@dataclass(frozen=True, kw_only=True)
class Images:
    """The images of one block: pixels `(B, ...)`, labels `(B,)`, data-set numbers `(B,)`."""

    x: Tensor
    y: Tensor
    index: Tensor

    def to(self, device: torch.device) -> Images:
        """The same on a device."""
        return Images(x=self.x.to(device), y=self.y.to(device), index=self.index.to(device))

    @property
    def digest(self) -> str:
        """A digest of all three."""
        return digest(self.x, self.y, self.index)


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

    Args:
        work: What to do.
        images: On what.
        store: Where finished units are read and written.
        given: Accepted mistakes found elsewhere, taken as known from the start (for ablations).
        listener: Called after every unit.

    Returns:
        The block as the last stage left it, and its units.
    """
    block = Block(
        work.model,
        images.x,
        images.y,
        images.index,
        eps=work.eps,
        norm=work.norm,
        batch_size=work.batch_size,
        steering=work.steering,
        searcher=work.searcher,
    )
    if given is not None:
        block.found[Goal.ACCEPTED_MISTAKE] = given
    key = images.digest if store is not None else ""
    units: list[Unit] = []
    for number in range(len(work.stages) + 1):
        unit = store.load(key, work.plan, number) if store is not None else None
        if unit is not None:
            unit.replay(block)
        else:
            unit = _do(block, work, number, store, key)
            if store is not None:
                store.save(key, work.plan, number, unit)
        units.append(unit)
        if listener is not None:
            listener(block, unit.stage, unit.passes)
    return block, units


def _do(block: Block, work: Work, number: int, store: Store | None, key: str) -> Unit:
    """Do one unit; after running out of memory once more from its beginning, in half batches."""
    recorder = Recorder(block)
    saved = block.snapshot()
    with count_passes() as passes:
        file = None if store is None else store.partial(key, work.plan, number)
        unit = Underway(block, passes, file)
        while True:
            try:
                name = _run(block, work, number, unit)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if block.batch_size == 1:
                    raise RuntimeError(
                        "out of memory with a batch of a single image; use a smaller network or "
                        "a device with more memory"
                    ) from error
                block.restore(saved)
                block.batch_size = max(1, block.batch_size // 2)
                unit.state = None
                unit.note = f"out of memory: redone with batches of {block.batch_size}"
    return recorder.unit(name, passes, unit.seconds, extras=number == 0, note=unit.note)


def _run(block: Block, work: Work, number: int, unit: Underway) -> str:
    if number == 0:
        block.judge_clean()
        rank_targets(block, _most_targets(work.stages))
        return CLEAN_STAGE
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


def split(count: int, size: int) -> Iterator[range]:
    """Positions of the blocks of a data set: fixed by the data set and the size alone."""
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


def totals(units: Sequence[Sequence[Unit]]) -> list[dict[str, object]]:
    """Sum up units of many blocks, stage by stage, for tables."""
    rows: list[dict[str, object]] = []
    for column in zip(*units, strict=True):
        passes = sum((unit.passes for unit in column), Passes())
        rows.append(
            {
                "attack": column[0].stage,
                "forwards": passes.forwards,
                "backwards": passes.backwards,
                "seconds": sum(unit.seconds for unit in column),
                "found_outer": _changed(column, Goal.ACCEPTED_MISTAKE),
                "found_rejected": _changed(column, Goal.REJECTED),
            }
        )
    return rows


def _changed(units: Sequence[Unit], goal: Goal) -> int:
    key = f"{goal.name}.image"
    return sum(len(unit.tensors[key]) for unit in units if key in unit.tensors)
