"""Counts what an evaluation costs: samples through a forward, samples through a backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpr_wrap import smoothing


@dataclass(eq=False)
class Passes:
    """Sample-passes: one sample through one forward or one backward counts one."""

    forwards: int = 0  #: Samples through a forward.
    backwards: int = 0  #: Samples through a backward, of any kind.
    smoothed: int = 0  #: How many of the backwards were smoothed, and so took longer.

    @property
    def total(self) -> int:
        """Forwards and backwards together."""
        return self.forwards + self.backwards

    def __add__(self, other: Passes) -> Passes:
        return Passes(
            self.forwards + other.forwards,
            self.backwards + other.backwards,
            self.smoothed + other.smoothed,
        )


_active: list[Passes] = []
_flags: list[Tensor] = []


@contextmanager
def count_passes() -> Iterator[Passes]:
    """Count the passes of every selective classifier used inside the block.

    Example:
        >>> with count_passes() as passes:
        ...     pass
        >>> passes.total
        0
    """
    passes = Passes()
    _active.append(passes)
    try:
        yield passes
    finally:
        _active.remove(passes)


class _Tally(torch.autograd.Function):
    """The identity at a network's input: its backward runs once for each backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.smoothed = smoothing.active()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        for passes in _active:
            passes.backwards += len(gradient)
            passes.smoothed += len(gradient) * ctx.smoothed
        return gradient


def tally(x: Tensor) -> Tensor:
    """Note that `x` `(N, ...)` enters a network; returns it, unchanged in value."""
    if not _active:
        return x
    for passes in _active:
        passes.forwards += len(x)
    counted: Tensor = _Tally.apply(x) if x.requires_grad else x
    return counted


@contextmanager
def watch_outputs(device: torch.device) -> Iterator[Tensor]:
    """A number on the device that is NaN once an output inside the block was NaN or infinite.

    Looking at it is left to the end, since every look waits for a GPU.
    """
    flag = torch.zeros((), device=device)
    _flags.append(flag)
    try:
        yield flag
    finally:
        _flags.pop()


def seen(outputs: Tensor) -> None:
    """Note that a network gave `outputs` `(N, k)`."""
    for flag in _flags:
        flag.add_((outputs.detach() * 0).sum())
