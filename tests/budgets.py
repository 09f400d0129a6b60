"""Budgets that cost next to nothing, for tests of what is around them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from cpr_wrap.attacks.adaptive import as_stage


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


def linear():
    """The network of the fixture `saved`, for a process that has not registered it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
