"""Schedules of the learning rate.

Functions of the progress, and not torch's schedulers, which count steps of their own: a resumed
training has nothing to restore.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


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


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A straight line, batch by batch, down to zero; up to its peak first, if asked for.

    Attributes:
        rise: Share of the training that is spent going up from zero.
    """

    name = "linear"

    rise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rise < 1:
            raise ValueError(f"rise: expected a share in [0, 1), got {self.rise}")

    def factor(self, progress: float, epochs: int) -> float:
        """Distance from the nearer end, in units of that side's length."""
        share = progress / epochs
        return share / self.rise if share < self.rise else (1 - share) / (1 - self.rise)


@dataclass(frozen=True, kw_only=True)
class Decay(Schedule):
    """Multiplied by `rate` after each epoch; with a rate of 1 the learning rate is constant."""

    name = "decay"

    rate: float = 0.95

    def factor(self, progress: float, epochs: int) -> float:  # noqa: ARG002
        """Rate to the power of the number of whole epochs."""
        return float(self.rate ** int(progress))


@dataclass(frozen=True, kw_only=True)
class Milestones(Schedule):
    """Multiplied by `rate` at each of some `epochs`."""

    name = "milestones"

    epochs: tuple[int, ...]
    rate: float = 0.1

    def factor(self, progress: float, epochs: int) -> float:  # noqa: ARG002
        """Rate to the power of the milestones passed."""
        return float(self.rate ** sum(progress >= epoch for epoch in self.epochs))
