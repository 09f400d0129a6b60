"""Three ways from a robustness curve and a rejection loss to the total robust loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cpr_wrap.metrics.losses import (
    ImageLoss,
    RampLoss,
    RejectionLoss,
    StepLoss,
    check_loss,
    check_values,
    evaluate,
)

if TYPE_CHECKING:
    from cpr_wrap.metrics.curve import RobustnessCurve

_IMAGE_GRID = 21  # radii at which a per-image loss is checked, for every image


def image_losses(broken: Tensor, radii: Tensor, loss: RejectionLoss, eps: float) -> Tensor:
    """What each image adds: 1 if broken, else the loss at its smallest rejected radius.

    The smallest radius is the worst, because the loss never rises.

    Args:
        broken: Was an accepted mistake found? `(N,)`.
        radii: Smallest rejected radii `(N,)`, infinite for none.
        loss: A non-increasing rejection loss.
        eps: Adversarial budget.

    Returns:
        Losses `(N,)`, float64.
    """
    check_loss(loss, eps)
    reached = torch.where(radii.isfinite(), radii, torch.full_like(radii, eps))
    return _with_mistakes(broken, radii, loss(reached, eps))


def image_losses_by_index(
    broken: Tensor, radii: Tensor, index: Tensor, loss: ImageLoss, eps: float
) -> Tensor:
    """The same for a loss l(r, index) that differs between images.

    Args:
        broken: Was an accepted mistake found? `(N,)`.
        radii: Smallest rejected radii `(N,)`, infinite for none.
        index: Data-set indices `(N,)`, handed to the loss.
        loss: A function of distances and indices, non-increasing in the distance.
        eps: Adversarial budget.

    Returns:
        Losses `(N,)`, float64.
    """
    grid = torch.linspace(0, eps, _IMAGE_GRID, dtype=torch.float64)
    columns = [evaluate(loss, radius.expand(len(index)), index) for radius in grid]
    name = getattr(loss, "__name__", type(loss).__name__)
    check_values(grid, torch.stack(columns, dim=1), name)
    reached = torch.where(radii.isfinite(), radii, torch.full_like(radii, eps))
    priced = evaluate(loss, reached, index)
    check_values(reached[:, None], priced[:, None], name)
    return _with_mistakes(broken, radii, priced)


def _with_mistakes(broken: Tensor, radii: Tensor, priced: Tensor) -> Tensor:
    rejected = torch.where(radii.isfinite(), priced.double(), torch.zeros_like(radii))
    return torch.maximum(broken.double(), rejected)


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
    return curve.error_at(0.0) + (_at_zero(loss, curve.eps) - 1) * curve.p_rej + integral


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
    return float(errors[0]) + (_at_zero(loss, curve.eps) - 1) * curve.p_rej + integral


def _at_zero(loss: RejectionLoss, eps: float) -> float:
    return float(loss(torch.zeros(1, dtype=torch.float64), eps)[0])
