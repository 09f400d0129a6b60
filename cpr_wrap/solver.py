"""Projected gradient ascent: the one solver behind T(x), attacks and training.

`Climb` holds a batch of rows and makes one step at a time, so that the engine can inspect and
replace rows between steps. `ascend` is the plain loop over it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap._checks import check_positive
from cpr_wrap.geometry import per_row, spread, threat

Keep = Literal["last", "best"]

BLIND = (
    "the whole input gradient of some images is NaN or infinite, and an ascent from them stays "
    "where it is: CPR accepts them unchecked, and attacks by gradient are blind there"
)
"""What `ascend` warns of."""


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Settings of projected gradient ascent."""

    steps: int  #: Number of steps.
    step_size: float  #: Length of a step in pixel units.
    #: Weight of the running mean of directions, 0 for none. The mean is not renormalized, so with
    #: 0.9 the first step has a tenth of `step_size`.
    momentum: float = 0.0
    norm: str = "Linf"  #: `Linf` (sign steps) or `L2` (steps along the gradient).
    keep: Keep = "last"  #: Return the `last` point, or the `best` by value among all visited.
    #: If given, a step that lowers the value is undone, and that row's step size is divided by this
    #: factor.
    backtrack: float | None = None
    #: Length of the last step as a share of the first; steps shrink geometrically.
    shrink: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps: expected at least 1, got {self.steps}")
        check_positive(self.step_size, "step_size")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected a number in [0, 1), got {self.momentum}")
        if self.keep not in ("last", "best"):
            raise ValueError(f"keep: expected 'last' or 'best', got {self.keep!r}")
        if self.backtrack is not None and self.backtrack <= 1:
            raise ValueError(f"backtrack: expected a factor above 1, got {self.backtrack}")
        if not 0 < self.shrink <= 1:
            raise ValueError(f"shrink: expected a share in (0, 1], got {self.shrink}")
        threat(self.norm)

    @property
    def decay(self) -> float:
        """By how much each step is shorter than the one before."""
        return float(self.shrink ** (1 / max(1, self.steps - 1)))


class Columns:
    """An object whose tensors all have one entry per row."""

    def columns(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        return {name: held for name, held in vars(self).items() if isinstance(held, Tensor)}

    def with_columns(self, columns: Mapping[str, Tensor]) -> Self:
        """The same object with other tensors, and without a copy of anything else."""
        result = copy.copy(self)
        vars(result).update(columns)
        return result

    def take(self, rows: Tensor) -> Self:
        """Some of the rows (indices `(M,)`), in that order."""
        return self.with_columns({name: held[rows] for name, held in self.columns().items()})

    def join(self, other: Self) -> Self:
        """These rows, and those of another with the same settings behind them."""
        theirs = other.columns()
        pairs = {name: (held, theirs[name]) for name, held in self.columns().items()}
        return self.with_columns({name: torch.cat(pair) for name, pair in pairs.items()})


class Climb(Columns):
    """Rows of projected gradient ascent.

    Attributes:
        z: Current points `(N, ...)`.
        best: The point with the largest value of each row so far `(N, ...)`.
        best_value: Its value `(N,)`, minus infinity before the first step.
    """

    def __init__(
        self,
        x: Tensor,
        radius: float | Tensor,
        pgd: PGD,
        *,
        start: Tensor | None = None,
        step_size: Tensor | None = None,
    ) -> None:
        """Start the rows.

        Args:
            x: Centers of the balls `(N, ...)`.
            radius: Radius of the balls, one or `(N,)`.
            pgd: The settings.
            start: First points `(N, ...)`, projected into the balls; by default `x`.
            step_size: Step sizes `(N,)` that replace `pgd.step_size`.
        """
        self.pgd = pgd
        self.threat = threat(pgd.norm)
        self.x = x.detach()
        rows = torch.ones(len(x), dtype=x.dtype, device=x.device)
        self.radius = (rows * radius).to(x.dtype)
        self.step_size = rows * (pgd.step_size if step_size is None else step_size)
        self.z = self.x if start is None else self.threat.project(start, self.x, self.radius)
        self.velocity = torch.zeros_like(self.x) if pgd.momentum else None
        self.best = self.z
        self.best_value = rows * -torch.inf
        if pgd.backtrack is not None:
            # Where it returns to: the last accepted point with its value and gradient. No value is
            # below minus infinity, so the first step is always taken.
            self.anchor, self.anchor_value = self.z, self.best_value
            self.anchor_gradient = torch.zeros_like(self.x)

    def take(self, rows: Tensor) -> Self:
        """Keep only some rows (indices `(M,)`), in that order."""
        # Contiguous even if the images are not: networks round by strides.
        return self.with_columns({k: v.index_select(0, rows) for k, v in self.columns().items()})

    def observe(self, value: Tensor) -> None:
        """Remember the points that are better than all before; `value` is `(N,)`."""
        better = value > self.best_value
        self.best_value = torch.where(better, value, self.best_value)
        self.best = torch.where(spread(better, self.z), self.z, self.best)

    def step(self, value: Tensor, gradient: Tensor) -> None:
        """Move every row once.

        Args:
            value: The objective at `z` `(N,)`.
            gradient: Its gradient at `z` `(N, ...)`.
        """
        if self.pgd.keep == "best":
            self.observe(value)
        base = self.z
        # One NaN in a gradient would stop a whole L2 step, and freeze a pixel under Linf.
        gradient = gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        if self.pgd.backtrack is not None:
            base, gradient = self._backtrack(value, gradient, self.pgd.backtrack)
        move = self.threat.steepest(gradient)
        if self.velocity is not None:
            mu = self.pgd.momentum
            self.velocity = move = mu * self.velocity + (1 - mu) * move
        moved = base + per_row(self.step_size, base) * move
        self.z = self.threat.project(moved, self.x, self.radius)
        if self.pgd.shrink < 1:
            self.step_size = self.step_size * self.pgd.decay

    def finish(self, value: Tensor) -> Tensor:
        """Points to return `(N, ...)`, given the objective at `z` after the last step `(N,)`."""
        if self.pgd.keep == "best":
            self.observe(value)
            return self.best
        if self.pgd.backtrack is None:
            return self.z
        # A last step that lowered the value is not taken either.
        return torch.where(spread(value < self.anchor_value, self.z), self.anchor, self.z)

    def _backtrack(self, value: Tensor, gradient: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Send rows whose last step lowered the value back, with a smaller step."""
        worse = value < self.anchor_value
        back = spread(worse, self.z)
        self.step_size = torch.where(worse, self.step_size / factor, self.step_size)
        self.anchor = torch.where(back, self.anchor, self.z)
        self.anchor_value = torch.where(worse, self.anchor_value, value)
        self.anchor_gradient = torch.where(back, self.anchor_gradient, gradient)
        return self.anchor, self.anchor_gradient


def ascend(
    value: Callable[[Tensor], Tensor],
    x: Tensor,
    radius: float | Tensor,
    pgd: PGD,
    *,
    start: Tensor | None = None,
    watch: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Maximize a function inside balls.

    Args:
        value: Differentiable function from points `(N, ...)` to values `(N,)`; each value depends
            on its own point alone.
        x: Centers of the balls `(N, ...)`.
        radius: Radius of the balls, one or `(N,)`.
        pgd: The settings.
        start: First points `(N, ...)`; by default `x`.
        watch: Called after each step with its number, counted from 1, and the points `(N, ...)`.

    Returns:
        Points `(N, ...)` without graph.

    Example:
        >>> import torch
        >>> from cpr_wrap.solver import PGD
        >>> x = torch.full((1, 1, 2, 2), 0.5)
        >>> pgd = PGD(steps=5, step_size=0.05)
        >>> brighter = ascend(lambda z: z.flatten(1).sum(dim=1), x, 0.1, pgd)
        >>> [round(pixel, 4) for pixel in brighter.flatten().tolist()]
        [0.6, 0.6, 0.6, 0.6]
    """
    climb = Climb(x, radius, pgd, start=start)
    with torch.enable_grad():
        for step in range(1, pgd.steps + 1):
            point = climb.z.detach().requires_grad_()
            now = value(point)
            gradient = _gradient(now, point)
            if step == 1:
                _warn_if_blind(gradient)
            climb.step(now.detach(), gradient)
            if watch is not None:
                watch(step, climb.z)
    if pgd.keep == "last" and pgd.backtrack is None:
        return climb.z
    with torch.no_grad():
        return climb.finish(value(climb.z))


def _gradient(value: Tensor, point: Tensor) -> Tensor:
    """Gradient `(N, ...)` at points, of values `(N,)` that each depend on their own point."""
    gradient = None
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value.sum(), point, allow_unused=True)
    if gradient is None:
        raise RuntimeError(
            "no gradient reaches the input: the network detaches it, or switches gradients off; "
            "CPR and every gradient attack need it to be differentiable"
        )
    return gradient


def _warn_if_blind(gradient: Tensor) -> None:
    """Tell of rows `(N, ...)` that an ascent cannot move at all."""
    if not gradient.is_meta and bool((~gradient.isfinite()).flatten(1).all(dim=1).any()):
        warnings.warn(BLIND, stacklevel=3)


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Temporarily disable parameter gradients.

    Input gradients do not need them. Graphs get smaller, and a call of `.backward()` inside does
    not change the parameters' `.grad`.

    Example:
        >>> import torch
        >>> network = torch.nn.Linear(4, 2)
        >>> with frozen(network):
        ...     network.weight.requires_grad
        False
        >>> network.weight.requires_grad
        True
    """
    asking = [p for p in network.parameters() if p.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)
