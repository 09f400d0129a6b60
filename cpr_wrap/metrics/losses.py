"""Rejection losses, and three ways from a curve and a loss to the total robust loss.

A rejection loss says what it costs to reject an input at distance r from a clean one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from cpr_wrap.metrics.curve import RobustnessCurve

Numbers = TypeVar("Numbers", float, Tensor)
"""A number for a number, a tensor for a tensor."""

_SLACK = 1e-9  # rounding of a loss computed in float64
_IMAGE_GRID = 21  # radii at which a per-image loss is checked, for every image

PAPER_ALPHAS = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 1.0)
"""Where the paper tabulates its curves, as shares of eps."""


@runtime_checkable
class RejectionLoss(Protocol):
    """A non-increasing function of the distance with values in [0, 1]."""

    @property
    def name(self) -> str:
        """Short name for tables; `parse_loss` reads those of the library's own losses."""

    def __call__(self, radius: Tensor, eps: float) -> Tensor:
        """Losses of rejecting inputs at some distances, in the shape of `radius`."""


LossLike: TypeAlias = "RejectionLoss | str | Callable[[Tensor], Tensor | float]"
"""A loss, its name, or any function of the distance alone, of tensors or of numbers."""

ImageLoss: TypeAlias = "Callable[[Tensor, Tensor], Tensor | float]"
"""A loss l(r, index) of distances and data-set indices, of tensors or of numbers."""


@dataclass(frozen=True)
class StepLoss:
    """Full loss up to alpha0 · eps, none beyond.

    Example:
        >>> import torch
        >>> StepLoss(0.05)(torch.tensor([0.01, 0.2]), eps=0.3)
        tensor([1., 0.])
    """

    alpha0: float  #: Fraction of eps, in [0, 1].

    def __post_init__(self) -> None:
        if not 0 <= self.alpha0 <= 1:
            raise ValueError(f"alpha0: expected a fraction of eps in [0, 1], got {self.alpha0}")

    @property
    def name(self) -> str:
        """What `parse_loss` reads, `step` with alpha0."""
        return f"step:{_short(self.alpha0)}"

    def __call__(self, radius: Tensor, eps: float) -> Tensor:
        """1 where `radius` is at most alpha0 · eps, else 0."""
        return (radius <= self.alpha0 * eps).to(radius.dtype)


@dataclass(frozen=True)
class RampLoss:
    """(1 - r / eps) ** t, and 0 beyond eps.

    Example:
        >>> import torch
        >>> RampLoss(2)(torch.tensor([0.0, 0.25, 0.5, 0.75]), eps=0.5)
        tensor([1.0000, 0.2500, 0.0000, 0.0000])
    """

    t: float  #: Exponent, at least 0; with a larger one, the loss decreases faster.

    def __post_init__(self) -> None:
        if not (math.isfinite(self.t) and self.t >= 0):
            raise ValueError(f"t: expected a finite exponent of at least 0, got {self.t}")

    @property
    def name(self) -> str:
        """What `parse_loss` reads, `ramp` with t."""
        return f"ramp:{_short(self.t)}"

    def __call__(self, radius: Tensor, eps: float) -> Tensor:
        """Fall from 1 at distance 0 to 0 at eps."""
        rest = 1 - radius / eps
        # 0 ** 0 is 1, as the paper's formula has it at r = eps; beyond eps there is no loss.
        return torch.where(rest >= 0, rest.abs() ** self.t, torch.zeros_like(rest))


@dataclass(frozen=True)
class TableLoss:
    """A loss given by points (fraction of eps, loss).

    Example:
        >>> import torch
        >>> prices = TableLoss(((0.05, 1.0), (0.5, 0.25)), between="steps")
        >>> prices(torch.tensor([0.01, 0.1, 0.4]), eps=0.5)
        tensor([1.0000, 0.2500, 0.0000])
    """

    #: Increasing fractions in [0, 1], with losses that do not increase.
    points: tuple[tuple[float, float], ...]
    #: `linear` interpolates, and is constant outside the points. `steps` is a price list: the loss
    #: of a point applies from the previous point (excluded) up to this one (included), and is 0
    #: beyond the last.
    between: Literal["linear", "steps"] = "linear"

    def __post_init__(self) -> None:
        if self.between not in ("linear", "steps"):
            raise ValueError(f"between: expected 'linear' or 'steps', got {self.between!r}")
        if not self.points:
            raise ValueError("points: expected at least one (fraction of eps, loss), got none")
        alphas = [alpha for alpha, _ in self.points]
        losses = [loss for _, loss in self.points]
        if not all(0 <= alpha <= 1 for alpha in alphas) or alphas != sorted(set(alphas)):
            raise ValueError(f"points: expected fractions of eps that rise in [0, 1], got {alphas}")
        if not all(0 <= loss <= 1 for loss in losses) or losses != sorted(losses, reverse=True):
            raise ValueError(f"points: expected losses in [0, 1] that never rise, got {losses}")

    @property
    def name(self) -> str:
        """What `parse_loss` reads, `table` or `prices` with the points."""
        kind = "table" if self.between == "linear" else "prices"
        return f"{kind}:" + ",".join(f"{_short(a)}={_short(loss)}" for a, loss in self.points)

    def __call__(self, radius: Tensor, eps: float) -> Tensor:
        """Look the losses up."""
        columns = torch.tensor(self.points, dtype=radius.dtype, device=radius.device)
        alphas, losses = columns[:, 0].contiguous() * eps, columns[:, 1]
        if self.between == "linear":
            return interpolate(radius, alphas, losses)
        free = torch.cat([losses, losses.new_zeros(1)])
        return free[torch.searchsorted(alphas, radius.contiguous())]


@dataclass(frozen=True)
class _Plain:
    """A function of the distance alone, made a `RejectionLoss`."""

    function: Callable[[Tensor], Tensor | float]

    @property
    def name(self) -> str:
        return _name(self.function)

    def __call__(self, radius: Tensor, eps: float) -> Tensor:  # noqa: ARG002 - the protocol's
        return evaluate(self.function, radius)


PAPER_LOSSES: tuple[RejectionLoss, ...] = (
    *(StepLoss(alpha0) for alpha0 in (0.0, 0.01, 0.05, 0.1, 0.15, 0.2)),
    *(RampLoss(t) for t in (1, 2, 3, 4)),
)


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _short(number: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(float(number)).removesuffix(".0")


def fractions(alpha: float | Tensor) -> Tensor:
    """Fractions of eps as float64 on the CPU, in the shape given; others are refused."""
    values = torch.as_tensor(alpha, device="cpu").double()
    # Written so that NaN is refused as well.
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(f"alpha: expected fractions of eps in [0, 1], got {alpha}")
    return values


def like(given: Numbers, values: Tensor) -> Numbers:
    """The values as a number if a number was given, else on the device of the given tensor."""
    return values.to(given.device) if isinstance(given, Tensor) else float(values)


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Linear interpolation at `x` between rising knots `(M,)`, constant outside them."""
    return torch.as_tensor(np.interp(x.cpu(), knots.cpu(), values.cpu())).to(x)


def evaluate(function: Callable[..., Tensor | float], *columns: Tensor) -> Tensor:
    """A user's function of columns `(N,)`, called row by row where it only knows numbers."""
    shape = columns[0].shape
    try:
        result = torch.as_tensor(function(*columns), dtype=torch.float64)
        if result.shape in (shape, torch.Size([])):
            return result.expand(shape)
    except (TypeError, ValueError, RuntimeError):
        pass  # e.g. math.exp or an `if` on the distance; a true mistake shows again below
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return torch.tensor([float(function(*row)) for row in rows], dtype=torch.float64)


def as_loss(loss: LossLike) -> RejectionLoss:
    """Turn a loss, its name such as `step:0.05`, or a function of the distance into a loss."""
    if isinstance(loss, str):
        return parse_loss(loss)
    if isinstance(loss, RejectionLoss):
        return loss
    if callable(loss):
        return _Plain(loss)
    raise TypeError(
        "expected a rejection loss, its name such as 'step:0.05', or a function of the distance, "
        f"got {type(loss).__name__}"
    )


LOSS_KINDS = ("step", "ramp", "table", "prices")
"""What the name of a loss of ours begins with."""


def parse_loss(text: str) -> RejectionLoss:
    """Read a loss from text.

    Args:
        text: `step:0.05`, `ramp:2`, or points as in `table:0=1,0.5=0.2` (linear in between) and
            `prices:0.1=1,0.5=0.2` (steps).

    Example:
        >>> parse_loss("ramp:2")
        RampLoss(t=2.0)
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "step":
            return StepLoss(float(rest))
        if kind == "ramp":
            return RampLoss(float(rest))
        if kind in ("table", "prices"):
            pairs = [pair.split("=") for pair in rest.split(",")]
            points = tuple((float(alpha), float(loss)) for alpha, loss in pairs)
            return TableLoss(points, "linear" if kind == "table" else "steps")
    except ValueError as error:
        raise ValueError(f"cannot read the rejection loss {text!r}: {error}") from error
    raise LookupError(
        f"unknown rejection loss {text!r}; expected step:ALPHA, ramp:T, "
        "table:ALPHA=LOSS,... or prices:ALPHA=LOSS,..."
    )


def check_loss(loss: RejectionLoss, eps: float) -> None:
    """Refuse a loss that leaves [0, 1] or increases, checked on a grid over [0, eps]."""
    grid = torch.linspace(0, eps, 1001, dtype=torch.float64)
    _check_values(grid, loss(grid, eps), loss.name)


def _check_values(radii: Tensor, losses: Tensor, name: str) -> None:
    """Refuse losses outside [0, 1], or that rise with the radius along the last dimension."""
    radii = radii.expand(losses.shape)
    # Written so that NaN is refused as well.
    outside = ~((losses >= -_SLACK) & (losses <= 1 + _SLACK))
    if bool(outside.any()):
        where = tuple(outside.nonzero()[0].tolist())
        raise ValueError(
            f"rejection loss {name}: expected values in [0, 1], got {losses[where]:g} at distance "
            f"{radii[where]:g}; divide by the cost of a mistake"
        )
    rises = losses.diff(dim=-1) > _SLACK
    if bool(rises.any()):
        where = tuple(rises.nonzero()[0].tolist())
        after = (*where[:-1], where[-1] + 1)
        raise ValueError(
            f"rejection loss {name}: expected no increase, got {losses[where]:g} "
            f"at distance {radii[where]:g} and {losses[after]:g} at {radii[after]:g}; rejecting a "
            "larger perturbation must not cost more"
        )


def image_losses(
    broken: Tensor,
    radii: Tensor,
    loss: LossLike | ImageLoss,
    eps: float,
    index: Tensor | None = None,
) -> Tensor:
    """What each image adds `(N,)`: 1 if broken, else the loss at its smallest rejected radius.

    The smallest radius is the worst, because the loss never rises; an infinite one costs nothing.
    With data-set indices `(N,)`, the loss is a function l(r, index) that may differ by image.
    """
    reached = torch.where(radii.isfinite(), radii, eps)
    if index is None:
        common = as_loss(cast("LossLike", loss))
        check_loss(common, eps)
        priced = common(reached, eps)
    else:
        own, name = cast("ImageLoss", loss), _name(loss)
        grid = torch.linspace(0, eps, _IMAGE_GRID, dtype=torch.float64)
        columns = [evaluate(own, radius.expand(len(index)), index) for radius in grid]
        _check_values(grid, torch.stack(columns, dim=1), name)
        priced = evaluate(own, reached, index)
        _check_values(reached[:, None], priced[:, None], name)
    return torch.maximum(broken.double(), torch.where(radii.isfinite(), priced.double(), 0.0))


def lemma_total_loss(curve: RobustnessCurve, loss: RejectionLoss) -> float:
    """The general lemma: s(0) + (l(0) - 1) · p_rej + the integral of l(alpha · eps) ds(alpha).

    s is a step function here, so the integral is the sum over its jumps of loss times height. It
    uses only the curve, not the images, and so checks the exact method.

    Example:
        >>> import torch
        >>> from cpr_wrap.metrics import RampLoss, Records, RobustnessCurve
        >>> row = {"index": 0, "label": 3, "clean_label": 3, "outer_broken": False, "outer_by": "",
        ...        "outer_distance": None, "rejected_radius": 0.25, "rejected_by": "LCIA"}
        >>> curve = RobustnessCurve(Records.from_rows([row], eps=0.5, norm="Linf"))
        >>> round(lemma_total_loss(curve, RampLoss(2)), 4)
        0.25
    """
    radii = curve.radii
    jumps = radii[radii.isfinite() & (radii > 0)].unique()
    levels = curve.error_within(torch.cat([jumps.new_zeros(1), jumps]))
    integral = float((loss(jumps, curve.eps) * levels.diff()).sum())
    return _by_lemma(curve, loss, integral)


def trapezoid_total_loss(
    curve: RobustnessCurve, loss: RejectionLoss, spacing: float = 0.01
) -> float:
    """The paper's approximation: s is linear between tabulated alphas, integrated by trapezoids.

    Step losses give s(alpha0), ramps with t of at least 1 the integral of t · s(alpha) · (1 -
    alpha) ** (t - 1), as the paper computes them. Any other loss uses the general lemma, with
    trapezoids for the Stieltjes integral.

    Args:
        curve: A curve tabulated at 0 and at 1.
        loss: A non-increasing rejection loss.
        spacing: Distance between grid points, a divisor of 1.
    """
    check_loss(loss, curve.eps)
    steps = round(1 / spacing) if spacing > 0 else 0
    if steps < 1 or abs(steps * spacing - 1) > 1e-9:
        raise ValueError(f"spacing: expected a divisor of 1 such as 0.01, got {spacing}")
    if isinstance(loss, StepLoss):
        return curve.interpolated_error_at(loss.alpha0)
    alpha = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    errors = curve.interpolated_error_at(alpha)
    if isinstance(loss, RampLoss) and loss.t >= 1:
        weight = loss.t * (1 - alpha) ** (loss.t - 1)
        return float(torch.trapezoid(errors * weight, alpha))
    integral = float(torch.trapezoid(loss(alpha * curve.eps, curve.eps), errors))
    return _by_lemma(curve, loss, integral)


def _by_lemma(curve: RobustnessCurve, loss: RejectionLoss, integral: float) -> float:
    at_zero = float(loss(torch.zeros(1, dtype=torch.float64), curve.eps))
    return curve.error_at(0.0) + (at_zero - 1) * curve.p_rej + integral
