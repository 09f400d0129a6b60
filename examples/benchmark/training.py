"""How much faster adversarial training is when the attack computes no parameter gradients.

`python examples/benchmark/training.py` trains a few batches twice, side by side: once with our
step, once with a loop as one would first write it, and prints images per second and their ratio.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap.networks import build_network, network_settings
from cpr_wrap.training.methods import AT
from cpr_wrap.training.recipes import RECIPES, Recipe


@dataclass(frozen=True, kw_only=True)
class TrainingSpeed:
    """Images a second of both loops, and how many times faster ours is.

    Attributes:
        ours: With the parameters frozen while the attack runs.
        straightforward: With `loss.backward()` inside the attack.
        ratio: Median over the rounds of the ratio of both times, measured right after each other.
    """

    ours: float
    straightforward: float
    ratio: float

    def __str__(self) -> str:
        return (
            f"adversarial training: {self.ours:.0f} images/s, straightforward loop "
            f"{self.straightforward:.0f} images/s, {self.ratio:.2f} times faster"
        )


def our_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: AT,
    x: Tensor,
    y: Tensor,
    keys: Tensor,
) -> None:
    """One step of adversarial training as the loop takes it."""
    loss = method.loss(network, x, y, keys).rows.mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def straightforward_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: AT,
    x: Tensor,
    y: Tensor,
    keys: Tensor,
) -> None:
    """The same step, with gradients of everything computed in every step of the attack."""
    network.eval()
    offset = method.eps * (2 * noise.uniform(keys, x[0].numel()) - 1).to(x.dtype).view_as(x)
    z = (x + offset).clamp(0, 1)
    for _ in range(method.steps):
        z = z.detach().requires_grad_()
        F.cross_entropy(network(z), y, reduction="sum").backward()
        assert z.grad is not None
        offset = (z.detach() + method.pgd.step_size * z.grad.sign() - x).clamp(
            -method.eps, method.eps
        )
        z = (x + offset).clamp(0, 1)
    network.train()
    loss = F.cross_entropy(network(z.detach()), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def measure_training_speed(
    recipe: Recipe | str = "mnist-compact-at",
    *,
    shape: tuple[int, int, int] = (1, 28, 28),
    batch_size: int = 128,
    rounds: int = 7,
) -> TrainingSpeed:
    """Time both loops on random images, batch by batch in turn.

    Args:
        recipe: An AT recipe.
        shape: `(C, H, W)` of the images.
        batch_size: Images a batch.
        rounds: Batches that are timed, after one that is not.
    """
    if isinstance(recipe, str):
        recipe = RECIPES[recipe]
    method = recipe.method
    if not isinstance(method, AT):
        raise TypeError(f"expected a recipe of method 'at', got one of {method.name!r}")
    first = build_network(recipe.network, **network_settings(recipe.network, shape, 10)).train()
    second = copy.deepcopy(first)
    first = first.to(memory_format=torch.channels_last)  # as our loop has it
    numbers = torch.arange(batch_size)
    x = noise.uniform(noise.keys(0, numbers), math.prod(shape)).float().view(-1, *shape)
    steps = [
        _bound(our_step, first, recipe.lr, method, x.to(memory_format=torch.channels_last)),
        _bound(straightforward_step, second, recipe.lr, method, x),
    ]
    times: list[list[float]] = []
    for turn in range(rounds + 1):
        keys = noise.keys(1, turn, numbers)
        times.append([_timed(step, keys) for step in steps])
    ours, theirs = zip(*times[1:], strict=True)
    return TrainingSpeed(
        ours=batch_size / statistics.median(ours),
        straightforward=batch_size / statistics.median(theirs),
        ratio=statistics.median(b / a for a, b in times[1:]),
    )


def _bound(
    step: Callable[..., None], network: nn.Module, lr: float, method: AT, x: Tensor
) -> Callable[[Tensor], None]:
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
    y = torch.arange(len(x)) % 10

    def run(keys: Tensor) -> None:
        step(network, optimizer, method, x, y, keys)

    return run


def _timed(step: Callable[[Tensor], None], keys: Tensor) -> float:
    begin = time.perf_counter()
    step(keys)
    return time.perf_counter() - begin


if __name__ == "__main__":
    print(measure_training_speed())
