"""Trainings that take a second: tiny images that a tiny network can learn to be robust on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from cpr_wrap.training import METHODS, AdversarialMethod, Recipe
from cpr_wrap.training.recipes import Linear

SIZE = 6


def stripes(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images of three classes, told by something faint and by something strong.

    The strong sign, robust to changes of 0.1, is one of three pairs of rows being brighter by 0.4;
    one image in ten lacks it. The faint one is a pattern of 0.05 over the whole image.
    """
    random = torch.Generator().manual_seed(seed)
    image = torch.arange(count)
    y = image % 3
    patterns = torch.rand(3, SIZE, SIZE, generator=torch.Generator().manual_seed(99)).round()
    x = 0.25 + 0.2 * torch.rand(count, SIZE, SIZE, generator=random)
    x += 0.05 * (2 * patterns[y] - 1)
    for row in (0, 1):
        x[image, 2 * y + row] += 0.4 * (torch.rand(count, 1, generator=random) < 0.9)
    return x[:, None], y


def small_network(outputs: int = 3, seed: int = 0, dropout: float = 0.0) -> nn.Module:
    """Two layers with batch norm, and dropout if asked for."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Flatten(),
            nn.Linear(6 * SIZE * SIZE, outputs),
        )


def plain_network(outputs: int = 3, seed: int = 0) -> nn.Module:
    """Two layers without batch norm, whose statistics differ between processes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(SIZE * SIZE, 16), nn.ReLU(), nn.Linear(16, outputs)
        )


def quick_recipe(name: str = "at", **changes) -> Recipe:
    """A recipe for `stripes`: five steps of PGD, four epochs."""
    method = METHODS[name]()
    if isinstance(method, AdversarialMethod):
        method = replace(method, eps=0.1, steps=1 if name == "fast-at" else 5, step_size=None)
    recipe = Recipe(
        method=method, epochs=4, batch_size=16, lr=0.1, schedule=Linear(), warmup=0.25, seed=1
    )
    return replace(recipe, **changes)


def weights(network: nn.Module) -> dict[str, Tensor]:
    """A copy of everything a network has learned."""
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Equal to the last bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
