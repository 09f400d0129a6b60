"""Every attack alone on every image, as in the paper's Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from cpr_wrap.attacks.adaptive import Attack, Halving, Stage
from cpr_wrap.evaluation import ranks
from cpr_wrap.evaluation.block import Block, Found
from cpr_wrap.evaluation.blocks import Images, Work, evaluate_block
from cpr_wrap.evaluation.store import Store, Unit
from cpr_wrap.objective import Goal


def _name(stage: Stage) -> str:
    """Stages of one objective are one attack, whatever their settings."""
    return stage.objective.name if isinstance(stage, Attack) else stage.name


def _goal(stage: Stage) -> Goal:
    return stage.goal if isinstance(stage, Attack | Halving) else Goal.ACCEPTED_MISTAKE


def ablation_table(
    work: Work,
    images: Sequence[Images],
    outer: Sequence[Found],
    store: Store | None,
    device: torch.device,
) -> list[dict[str, Any]]:
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
        One row an attack: name, goal, robustness, lost (numbers of the images that count as errors
        under it), found, passes per image.
    """
    groups: dict[tuple[Goal, str], list[Stage]] = {}
    for stage in work.stages:
        if not isinstance(stage, Halving) and _goal(stage) is not Goal.MISTAKE:
            groups.setdefault((_goal(stage), _name(stage)), []).append(stage)
    mine: dict[int, _Tally] = {}
    for place, ((goal, name), stages) in enumerate(groups.items()):
        alone = replace(work, stages=tuple(stages), plan=f"alone-{goal.name}-{_safe(name)}")
        for number, (part, known) in enumerate(zip(images, outer, strict=True)):
            if number % ranks.world_size() != ranks.rank():
                continue
            given = None if goal is Goal.ACCEPTED_MISTAKE else known.to(device)
            with ranks.explain_failure(number):
                done = evaluate_block(alone, part.to(device), store, given=given)
            mine[place * len(images) + number] = _tally(*done, goal, work.eps)
    everyone = ranks.gather(mine)
    return [
        _row(goal, name, [everyone[place * len(images) + n] for n in range(len(images))])
        for place, (goal, name) in enumerate(groups)
    ]


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


def _row(goal: Goal, name: str, blocks: Sequence[_Tally]) -> dict[str, Any]:
    count = sum(block.images for block in blocks)
    lost = [number for block in blocks for number in block.errors]
    return {
        "attack": name,
        "goal": goal.value,
        "alpha": 1.0 if goal is Goal.REJECTED else 0.0,
        "robustness": 1 - len(lost) / count,
        "lost": lost,
        "found": sum(block.found for block in blocks),
        "passes_per_image": sum(block.passes for block in blocks) / count,
    }


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)
