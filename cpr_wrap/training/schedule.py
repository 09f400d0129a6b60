"""How the learning rate goes down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from cpr_wrap._registry import Registry

SCHEDULES: Registry[type[Schedule]] = Registry("learning-rate schedule")


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """The learning rate as a multiple of the recipe's, over the course of a training."""

    name: ClassVar[str]

    @abstractmethod
    def factor(self, progress: float, epochs: int) -> float:
        """Multiple of the learning rate.

        Args:
            progress: Epochs done, with the fraction of the current one.
            epochs: Epochs in all.
        """


_S = TypeVar("_S", bound=type[Schedule])


def _register(name: str) -> Callable[[_S], _S]:
    def enter(schedule: _S) -> _S:
        schedule.name = name
        SCHEDULES.register(name)(schedule)
        return schedule

    return enter


@_register("constant")
@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """Always the same."""

    def factor(self, progress: float, epochs: int) -> float:  # noqa: ARG002
        """One."""
        return 1.0


@_register("linear")
@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A straight line, batch by batch, down to zero; up to its peak first, if asked for.

    Attributes:
        rise: Share of the training that is spent going up from zero.
    """

    rise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rise < 1:
            raise ValueError(f"rise: expected a share in [0, 1), got {self.rise}")

    def factor(self, progress: float, epochs: int) -> float:
        """Distance from the nearer end, in units of that side's length."""
        share = progress / epochs
        if share < self.rise:
            return share / self.rise
        return (1 - share) / (1 - self.rise)


@_register("decay")
@dataclass(frozen=True, kw_only=True)
class Decay(Schedule):
    """Multiplied by the same number after each epoch.

    Attributes:
        rate: That number.
    """

    rate: float = 0.95

    def factor(self, progress: float, epochs: int) -> float:  # noqa: ARG002
        """Rate to the power of the number of whole epochs."""
        return float(self.rate ** int(progress))


@_register("milestones")
@dataclass(frozen=True, kw_only=True)
class Milestones(Schedule):
    """Multiplied by the same number at certain epochs.

    Attributes:
        epochs: When.
        rate: The number.
    """

    epochs: tuple[int, ...]
    rate: float = 0.1

    def factor(self, progress: float, epochs: int) -> float:  # noqa: ARG002
        """Rate to the power of the milestones passed."""
        return float(self.rate ** sum(progress >= epoch for epoch in self.epochs))
