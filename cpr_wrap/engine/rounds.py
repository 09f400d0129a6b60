"""Rounds of further restarts on all images, until several in a row find nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

from cpr_wrap.attacks.adaptive import Stage
from cpr_wrap.engine import ranks
from cpr_wrap.engine.block import Block
from cpr_wrap.engine.evaluate import Listener, Work, go_on
from cpr_wrap.engine.images import Images
from cpr_wrap.engine.store import Store, Unit
from cpr_wrap.objective import Goal
from cpr_wrap.rule import RejectionRule

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
                key = Images(x=block.x, y=block.y, index=block.index).digest if store else ""
                go_on(work, block, units, store, key, listener=listener)
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
