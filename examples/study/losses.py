"""Total robust losses as the paper computes them, image by image."""

from __future__ import annotations

import torch
from torch import Tensor

from cpr_wrap.metrics import RampLoss, RobustnessCurve, parse_loss
from cpr_wrap.metrics.losses import interpolate

_GRID = torch.linspace(0, 1, 101, dtype=torch.float64)


def image_losses(curve: RobustnessCurve, name: str) -> Tensor:
    """What each image adds to a total robust loss by the paper's rule.

    The paper knows s at a few alphas and integrates straight lines between them. That is linear in
    s, and s is a mean over images, so that every image has its share.

    Args:
        curve: A curve, tabulated at the paper's alphas.
        name: The loss: `step:0.05`, `ramp:2`.

    Returns:
        Losses `(N,)`, float64; their mean is `total_robust_loss(name, rule="trapezoid")`.
    """
    loss = parse_loss(name)
    if not isinstance(loss, RampLoss):
        return curve.image_losses(name)
    knots = torch.tensor(curve.alphas, dtype=torch.float64)
    weight = loss.t * (1 - _GRID) ** (loss.t - 1)
    units = torch.eye(len(knots), dtype=torch.float64)
    lines = torch.stack([interpolate(_GRID, knots, unit) for unit in units])
    shares = torch.trapezoid(lines * weight, _GRID, dim=1)
    errors = torch.stack([curve.image_losses(f"step:{alpha}") for alpha in curve.alphas], dim=1)
    return errors @ shares


def total_loss(curve: RobustnessCurve, name: str) -> float:
    """The total robust loss by the paper's rule."""
    return float(image_losses(curve, name).mean())
