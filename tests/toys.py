"""Networks whose boundaries, and so T(x), acceptance and calibration, are known by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T, rounded in the same way whatever the number of rows (`@` is not)."""
    return (x[:, None, :] * weight).sum(dim=2)


class Linear(nn.Module):
    """A linear network in float64, in eval mode, from `(N, ...)` to `(N, outputs)`."""

    def __init__(self, weight, bias, dtype=torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.as_tensor(weight, dtype=dtype))
        self.bias = nn.Parameter(torch.as_tensor(bias, dtype=dtype))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return _product(x.flatten(1), self.weight) + self.bias


class Line(Linear):
    """Two classes on [0, 1]: class 1 from 0.5 on.

    The logits are ∓ slope · (x - 0.5), so class 1's lead is 2 · slope · (x - 0.5).
    """

    def __init__(self, slope: float = 1.0, dtype=torch.float64) -> None:
        super().__init__([[-slope], [slope]], [slope / 2, -slope / 2], dtype)


class Plane(Linear):
    """Two classes on the square: class 1 where 0.6 · a + 0.8 · b is at least 0.7.

    The normal has length 1, so (0.6 a + 0.8 b - 0.7) is the L2 distance to the boundary; the Linf
    distance is that over 1.4. Class 1's lead is twice the L2 distance.
    """

    NORMAL = torch.tensor([0.6, 0.8], dtype=torch.float64)
    LEVEL = 0.7

    def __init__(self, dtype=torch.float64) -> None:
        super().__init__(torch.stack([-self.NORMAL, self.NORMAL]), [self.LEVEL, -self.LEVEL], dtype)

    @classmethod
    def distance(cls, x: Tensor) -> Tensor:
        """Signed L2 distance to the boundary, positive where class 1 is predicted."""
        return x @ cls.NORMAL - cls.LEVEL


class Island(nn.Module):
    """Class 1 between 0.45 and 0.5, most of all at 0.475; class 0 elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        lead = (x - 0.475).abs() - 0.025
        return torch.cat([lead, -lead], dim=1)


class Curved(nn.Module):
    """A small smooth network on 4 pixels with fixed random weights, in float64 and eval mode."""

    def __init__(self, outputs: int = 3, pixels: int = 4, seed: int = 0, scale: float = 8) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        hidden = 8
        self.first = nn.Parameter(
            torch.randn(hidden, pixels, generator=random, dtype=torch.float64) * scale / pixels
        )
        self.second = nn.Parameter(
            torch.randn(outputs, hidden, generator=random, dtype=torch.float64) * scale / hidden
        )
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return _product(_product(x.flatten(1) - 0.5, self.first).tanh(), self.second)


def pixels(count: int, *shape: int, seed: int = 0) -> Tensor:
    """Random images `(count, *shape)` in float64, off the bounds."""
    random = torch.Generator().manual_seed(seed)
    return torch.rand(count, *(shape or (1, 2, 2)), generator=random, dtype=torch.float64)
