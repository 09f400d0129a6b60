"""Interval bounds (Gowal et al. 2018): how far a class leads all others in a whole box."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cpr_wrap.bounds.layers import ROUNDING, Affine, Box, gamma
from cpr_wrap.bounds.tape import Entry, record
from cpr_wrap.geometry import per_row, wide


def ball(x: Tensor, radius: float | Tensor, margin: float = 1.0) -> Box:
    """All points of [0, 1] within a radius, one or `(N,)`, of images; rounded outward."""
    high_precision = x.detach().to(wide(x)) if margin else x
    reach = per_row(radius, high_precision)
    low, high = (high_precision - reach).clamp_min(0), (high_precision + reach).clamp_max(1)
    center = ((low + high) / 2).to(x.dtype)
    radii = torch.maximum(high - center, center - low)
    if margin:
        here, there = torch.finfo(x.dtype).eps, torch.finfo(high.dtype).eps
        radii = radii * (1 + 2 * margin * here) + 4 * margin * there
    return Box(center, radii.to(x.dtype))


def leads(
    network: nn.Module,
    x: Tensor,
    label: Tensor,
    radius: float | Tensor,
    *,
    num_classes: int | None = None,
    margin: float = 1.0,
) -> Tensor:
    """Lower bounds on the margins of a class over every other class, in the whole ball.

    Args:
        network: Network on pixels, in eval mode.
        x: Centers `(N, ...)` in [0, 1]. Differentiable if they require a gradient.
        label: The classes `(N,)`.
        radius: Linf radius of the balls, or one per row `(N,)`.
        num_classes: k, if the network has more outputs than classes.
        margin: How many rounding margins to add.

    Returns:
        Bounds `(N, k)`; infinite for the class itself.

    Example:
        >>> import torch
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
        >>> x = torch.rand(2, 1, 2, 2)
        >>> label = network(x).argmax(dim=1)
        >>> margins = leads(network, x, label, 0.01)
        >>> margins.shape, bool((margins.gather(1, label[:, None]) == torch.inf).all())
        (torch.Size([2, 3]), True)
    """
    box = ball(x, radius, margin)
    if x.requires_grad:
        # The box is built in float64 without a graph; its center moves with x where it is free.
        inside = ((x - per_row(radius, x)) > 0) & ((x + per_row(radius, x)) < 1)
        box = Box(box.center + (x - x.detach()) * torch.where(inside, 1.0, 0.5), box.radius)
    last = record(network, box, margin)[-1]
    return _last_leads(last, label, last.shape[0] if num_classes is None else num_classes, margin)


def _last_leads(last: Entry, label: Tensor, k: int, margin: float) -> Tensor:
    """Leads `(N, k)` of classes `(N,)` by the last layer, as one difference of rows if linear."""
    columns = last.box
    if isinstance(last.layer, Affine) and len(last.parents[0].shape) == 1:
        box = last.parents[0].box
        unit = torch.eye(last.shape[0], dtype=box.center.dtype, device=box.center.device)[:k]
        weight = last.layer.back(unit)
        rows = (weight[:, None] - weight[None])[label]  # (N, k, d)
        center = columns.center[:, :k].gather(1, label[:, None]) - columns.center[:, :k]
        radius = torch.einsum("nkd,nd->nk", rows.abs(), box.radius)
        if margin:
            size = last.layer.size(box)[:, :k]
            room = margin * ROUNDING * gamma(last.layer.terms + 2, center)
            radius = radius + room * (size + size.gather(1, label[:, None]))
        found = center - radius
    else:
        found = columns.low.gather(1, label[:, None]) - columns.high[:, :k]
    return found.scatter(1, label[:, None], torch.inf)


def proven_lead(
    network: nn.Module, x: Tensor, label: Tensor, radius: float | Tensor, **settings: Any
) -> Tensor:
    """The smallest margin `(N,)`, see `leads`; above 0, the class is proven in the whole ball."""
    return leads(network, x, label, radius, **settings).amin(dim=1)
