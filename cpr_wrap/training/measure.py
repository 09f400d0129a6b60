"""Quick accuracies of a network, clean and under PGD: for progress lines and model cards.

Not an evaluation: that is `cpr_wrap.evaluation`, which attacks the rejection rule as well.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap.geometry import ball
from cpr_wrap.objective import margin
from cpr_wrap.solver import PGD, ascend
from cpr_wrap.training.method import attacking


def clean_accuracy(
    network: nn.Module, x: Tensor, y: Tensor, num_classes: int, batch_size: int = 250
) -> float:
    """Share of images whose largest class logit is the true one.

    Args:
        network: A network with at least `num_classes` outputs; further columns are not read.
        x: Images `(N, C, H, W)`.
        y: True classes `(N,)`.
        num_classes: k.
        batch_size: Images at a time.
    """
    hits = 0
    with attacking(network), torch.no_grad():
        for part, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
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
    batch_size: int = 250,
    seed: int = 0,
) -> Tensor:
    """Attack with PGD on the margin of the class logits.

    Args:
        network: A network with at least `num_classes` outputs; further columns are not read.
        x: Images `(N, C, H, W)`.
        y: True classes `(N,)`.
        num_classes: k.
        eps: Radius of the ball.
        steps: Steps of the attack, each of length 2.5 * eps / steps.
        norm: `Linf` or `L2`.
        batch_size: Images at a time.
        seed: Seed of the starts, which are uniform in the ball.

    Returns:
        The points of the smallest margin that were found `(N, C, H, W)`.
    """
    pgd = PGD(steps=steps, step_size=2.5 * eps / steps, norm=norm, keep="best")
    keys = noise.keys(seed, torch.arange(len(y), device=x.device))
    points = []
    with attacking(network):
        for first in range(0, len(y), batch_size):
            chosen = slice(first, first + batch_size)
            part, labels = x[chosen], y[chosen]
            start = part + ball(norm).uniform_offset(part, eps, keys[chosen])

            def lost(z: Tensor, labels: Tensor = labels) -> Tensor:
                return -margin(network(z)[:, :num_classes], labels)

            points.append(ascend(lost, part, eps, pgd, start=start))
    return torch.cat(points)


def pgd_accuracy(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    num_classes: int,
    eps: float,
    *,
    steps: int = 10,
    norm: str = "Linf",
    batch_size: int = 250,
    seed: int = 0,
) -> float:
    """Share of images still classified rightly at the points that `pgd_points` finds."""
    z = pgd_points(
        network, x, y, num_classes, eps, steps=steps, norm=norm, batch_size=batch_size, seed=seed
    )
    return clean_accuracy(network, z, y, num_classes, batch_size)
