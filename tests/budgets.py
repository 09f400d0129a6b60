"""Budgets that cost next to nothing, for tests of what is around them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from cpr_wrap.attacks.adaptive import Attack, as_stage
from cpr_wrap.objective import Goal


def darken(model, x, y, eps):
    return x - eps


def lighten(model, x, y, eps):
    return x + eps


class Dark:
    """One point per image; `--budget tests.budgets:Dark`."""

    name = "dark"

    def stages(self, rule, eps):
        return (as_stage(darken),)


@dataclass(frozen=True)
class Rounds(Dark):
    """The same, and a round more."""

    name: str = "rounds"
    cap: float = 1e6

    def more(self, rule, eps, number):
        return (as_stage(lighten),) if number == 1 else ()


@dataclass(frozen=True)
class Little:
    """A short attack, and another one where the rule can reject."""

    name: str = "little"

    def stages(self, rule, eps):
        short = {"steps": 8, "step": 0.3, "starts": (0, 1)}
        stages = [Attack(objective=rule.outer[-1], goal=Goal.ACCEPTED_MISTAKE, **short)]
        if rule.can_reject:
            inner = {"objective": rule.inner[0], "goal": Goal.REJECTED, "alphas": (0.5, 1.0)}
            stages.append(Attack(**inner, **short))
        return tuple(stages)


@dataclass(frozen=True)
class Longer(Little):
    """The same, and one attack more."""

    name: str = "longer"

    def stages(self, rule, eps):
        more = {"steps": 9, "step": 0.2, "starts": (2,)}
        last = Attack(objective=rule.outer[-1], goal=Goal.ACCEPTED_MISTAKE, **more)
        return (*super().stages(rule, eps), last)


def linear():
    """The network of the fixture `saved`, for a process that has not registered it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
