"""The former budget `standard`, without donors and smoothed gradients, for comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cpr_wrap.attacks.adaptive import KNOWN, Attack, Halving, Stage
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.objective import Goal, Objective, Targets, lost_margin
from cpr_wrap.rule import RejectionRule


def _attack(objective: Objective, goal: Goal, steps: int, step: float, **more: Any) -> Attack:
    settings = {"momentum": 0.75, "targets": 9, **more}
    return Attack(objective=objective, goal=goal, steps=steps, step=step, **settings)


def _inner(objective: Objective, steps: int, rounds: int, **more: Any) -> Attack:
    settings = {"starts": (KNOWN,), "step": 0.15, **more}
    return _attack(objective, Goal.REJECTED, steps, rounds=rounds, stride=0.05, **settings)


def _boundary(goal: Goal = Goal.MISTAKE) -> list[Stage]:
    closer = {"starts": (KNOWN,), "rounds": 4, "stride": 0.15, "tag": "-closer"}
    return [
        _attack(lost_margin, goal, 40, 0.3, rounds=1),
        _attack(lost_margin, goal, 10, 0.2, **closer),
        Halving(goal=goal, rounds=4),
    ]


@dataclass(frozen=True)
class Before:
    """The former `standard`, stage by stage (engine revision 3)."""

    name: str = "former-standard"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """Exact gradients from the image and from random starts, toward every class."""
        del eps
        costly = rule.cost.total > 1
        last = rule.outer[-1]
        plan = _boundary()
        plan.append(_attack(last, Goal.ACCEPTED_MISTAKE, 20, 1 / 3, targets=3, tag="-likely"))
        plan.append(Halving(goal=Goal.REJECTED, rounds=3))
        plan.append(_inner(rule.inner[0], 10, 3 if costly else 5, tag="-first"))
        plan.append(AutoAttackOnBase(version="small"))
        if not costly:
            plan.append(AdaptiveAutoAttack(n_iter=100))
        for objective in rule.outer:
            plan.extend(_outer_stages(objective, costly))
        plan.append(
            _attack(lost_margin, Goal.MISTAKE, 60, 0.3, rounds=1, momentum=0.9, starts=(1,))
        )
        plan.append(Halving(goal=Goal.REJECTED, rounds=2))
        for objective in rule.inner:
            plan.extend(_inner_stages(objective, costly))
        return (*plan, Halving(goal=Goal.REJECTED, rounds=3))


def _outer_stages(objective: Objective, costly: bool) -> list[Stage]:
    goal = Goal.ACCEPTED_MISTAKE
    if not costly:
        plain = _attack(objective, goal, 40, 1 / 3, starts=(0, 1))
        slow = replace(plain, steps=100, starts=(3,), step=0.1, tag="-slow")
        return [plain, slow, replace(plain, steps=100, starts=(2,), momentum=0.9, tag="-far")]
    plain = _attack(objective, goal, 20, 1 / 3)
    if not objective.path:
        return [plain]
    true = replace(plain, steps=25, starts=(1,), targets=2, stand_in=False, tag="-true")
    slow = replace(plain, steps=30, step=0.1, tag="-slow")
    return [replace(plain, starts=(1,)), slow, true]


def _inner_stages(objective: Objective, costly: bool) -> list[Stage]:
    fresh = {"starts": (0, 1), "step": 1 / 3, "tag": "-fresh"}
    if objective.targets is Targets.ALL:
        return [_inner(objective, 10, 3, targets=2)]
    if objective.path:
        return [_inner(objective, 10, 5), _inner(objective, 20, 3, **fresh)]
    if costly:
        return [_inner(objective, 15, 4)]
    return [_inner(objective, 20, 6), _inner(objective, 40, 3, **fresh)]
