"""Every attack alone on every image, as in the paper's Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cpr_wrap.attacks.adaptive import Attack, Halving, Stage
from cpr_wrap.evaluation.block import Found
from cpr_wrap.evaluation.blocks import Images, Work, evaluate_block
from cpr_wrap.evaluation.store import Store
from cpr_wrap.meter import Passes
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
    """Run each attack of a plan by itself.

    An outer attack is measured by the robustness at alpha = 0 that it leaves; an inner one by the
    robustness at alpha = 1, with the accepted mistakes of the whole ensemble given.

    Args:
        work: The evaluation.
        images: Its blocks.
        outer: The accepted mistakes that the whole ensemble found in each block.
        store: Where finished units are kept.
        device: Where the model is.

    Returns:
        One row an attack: name, goal, robustness, found, passes per image.
    """
    groups: dict[tuple[Goal, str], list[Stage]] = {}
    for stage in work.stages:
        if not isinstance(stage, Halving) and _goal(stage) is not Goal.MISTAKE:
            groups.setdefault((_goal(stage), _name(stage)), []).append(stage)
    rows = []
    for (goal, name), stages in groups.items():
        alone = replace(work, stages=tuple(stages), plan=f"alone-{goal.name}-{_safe(name)}")
        errors = found = count = 0
        passes = Passes()
        for part, known in zip(images, outer, strict=True):
            given = None if goal is Goal.ACCEPTED_MISTAKE else known.to(device)
            block, units = evaluate_block(alone, part.to(device), store, given=given)
            broken = block.found[Goal.ACCEPTED_MISTAKE].known
            rejected = block.found[Goal.REJECTED].distance
            limit = work.eps if goal is Goal.REJECTED else 0.0
            errors += int((broken | (rejected <= limit)).sum())
            found += int(
                (block.found[goal].distance > 0).logical_and(block.found[goal].known).sum()
            )
            count += len(block)
            passes = sum((unit.passes for unit in units), passes)
        rows.append(
            {
                "attack": name,
                "goal": goal.value,
                "alpha": 1.0 if goal is Goal.REJECTED else 0.0,
                "robustness": 1 - errors / count,
                "found": found,
                "passes_per_image": passes.total / count,
            }
        )
    return rows


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)
