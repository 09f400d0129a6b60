"""Every attack alone on every image, as in the paper's Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from cpr_wrap.attacks.adaptive import Attack, Halving, Stage, goal_of
from cpr_wrap.attacks.given import GivenPoints
from cpr_wrap.engine import ranks
from cpr_wrap.engine.block import Block, Found
from cpr_wrap.engine.evaluate import Work, evaluate_block
from cpr_wrap.engine.images import Images
from cpr_wrap.engine.store import Store, Unit
from cpr_wrap.metrics import AblationRow
from cpr_wrap.objective import Goal


def _name(stage: Stage) -> str:
    """Stages of one objective are one attack, whatever their settings."""
    return stage.objective.name if isinstance(stage, Attack) else stage.name


def ablation_table(
    work: Work,
    images: Sequence[Images],
    outer: Sequence[Found],
    store: Store | None,
    device: torch.device,
) -> tuple[AblationRow, ...]:
    """Run each attack of a plan by itself; every rank takes its share of the blocks.

    An outer attack is measured by the robustness at alpha = 0 that it leaves; an inner one by the
    robustness at alpha = 1, with the accepted mistakes of the whole ensemble given.

    Args:
        work: The evaluation.
        images: Its blocks.
        outer: The accepted mistakes that the whole ensemble found in each block.
        store: Where finished units are kept.
        device: Where the model is.

    Returns:
        One row per attack.
    """
    groups: dict[tuple[Goal, str], list[Stage]] = {}
    for stage in work.stages:
        if isinstance(stage, Halving | GivenPoints) or goal_of(stage) is Goal.MISTAKE:
            continue
        groups.setdefault((goal_of(stage), _name(stage)), []).append(stage)
    pairs = [(key, number) for key in groups for number in range(len(images))]
    mine: dict[int, _Tally] = {}
    for turn in ranks.turns(len(pairs)):
        (goal, name), number = pairs[turn]
        plan = f"alone-{goal.name}-{_safe(name)}"
        alone = replace(work, stages=tuple(groups[goal, name]), plan=plan)
        given = None if goal is Goal.ACCEPTED_MISTAKE else outer[number].to(device)
        with ranks.explain_failure(number):
            done = evaluate_block(alone, images[number].to(device), store, given=given)
        mine[turn] = _tally(*done, goal, work.eps)
    everyone = ranks.gather(mine)
    rows: dict[tuple[Goal, str], list[_Tally]] = {}
    for turn, (key, _) in enumerate(pairs):
        rows.setdefault(key, []).append(everyone[turn])
    return tuple(_row(goal, name, tallies) for (goal, name), tallies in rows.items())


class _Tally(NamedTuple):
    """What one attack did to one block."""

    errors: list[int]
    found: int
    images: int
    passes: int


def _tally(block: Block, units: Sequence[Unit], goal: Goal, eps: float) -> _Tally:
    broken = block.found[Goal.ACCEPTED_MISTAKE].known
    limit = eps if goal is Goal.REJECTED else 0.0
    found = block.found[goal]
    lost = broken | (block.found[Goal.REJECTED].distance <= limit)
    return _Tally(
        errors=block.index[lost].tolist(),
        found=int((found.known & (found.distance > 0)).sum()),
        images=len(block),
        passes=sum(unit.passes.total for unit in units),
    )


def _row(goal: Goal, name: str, blocks: Sequence[_Tally]) -> AblationRow:
    count = sum(block.images for block in blocks)
    lost = tuple(number for block in blocks for number in block.errors)
    return AblationRow(
        attack=name,
        goal=goal.value,
        alpha=1.0 if goal is Goal.REJECTED else 0.0,
        robustness=1 - len(lost) / count,
        lost=lost,
        found=sum(block.found for block in blocks),
        passes_per_image=sum(block.passes for block in blocks) / count,
    )


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)
