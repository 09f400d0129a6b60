"""Quick accuracies of a network, clean and under PGD: for progress lines and model cards.

Not an evaluation: that is `cpr_wrap.evaluation`, which attacks the rejection rule as well. All
networks may have more outputs than classes; further columns are not read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap.objective import margin
from cpr_wrap.training.at import AT
from cpr_wrap.training.method import attacking

_AT_A_TIME = 250


def clean_accuracy(network: nn.Module, x: Tensor, y: Tensor, num_classes: int) -> float:
    """Share of images `(N, C, H, W)` whose largest class logit is the true one `(N,)`."""
    hits = 0
    with attacking(network), torch.no_grad():
        for part, labels in zip(x.split(_AT_A_TIME), y.split(_AT_A_TIME), strict=True):
            hits += int((network(part)[:, :num_classes].argmax(dim=1) == labels).sum())
    return hits / len(y)


def pgd_points(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    num_classes: int,
    eps: float,
    *,
    steps: int = 10,
    norm: str = "Linf",
    seed: int = 0,
) -> Tensor:
    """Attack with PGD on the margin of the class logits, from a uniform start.

    Args:
        network: The network.
        x: Images `(N, C, H, W)`.
        y: True classes `(N,)`.
        num_classes: k.
        eps: Radius of the ball.
        steps: Steps of the attack, each of length 2.5 * eps / steps.
        norm: `Linf` or `L2`.
        seed: Seed of the starts.

    Returns:
        The points of the smallest margin that were found `(N, C, H, W)`.
    """
    attack = AT(eps=eps, steps=steps, norm=norm, keep="best").attack

    def points(x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        return attack(network, lambda z: -margin(network(z)[:, :num_classes], y), x, keys)

    keys = noise.keys(seed, torch.arange(len(y), device=x.device))
    return torch.cat([*map(points, *(rows.split(_AT_A_TIME) for rows in (x, y, keys)))])


def pgd_accuracy(
    network: nn.Module, x: Tensor, y: Tensor, num_classes: int, eps: float, **settings: Any
) -> float:
    """Share of images still classified rightly at the points that `pgd_points` finds."""
    points = pgd_points(network, x, y, num_classes, eps, **settings)
    return clean_accuracy(network, points, y, num_classes)
