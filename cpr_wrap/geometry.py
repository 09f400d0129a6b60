"""Balls around images: project into them, start in them, step along their norm, measure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap._registry import Registry

BALLS: Registry[Ball] = Registry("norm")


def ball(norm: str) -> Ball:
    """Return the ball of a norm, `Linf` or `L2`."""
    return BALLS[norm]


def spread(value: Tensor, x: Tensor) -> Tensor:
    """View one value a row `(N,)` so that it broadcasts over `x` `(N, ...)`."""
    return value.view(-1, *(1,) * (x.dim() - 1))


def per_row(value: float | Tensor, x: Tensor) -> Tensor:
    """Shape a number, or one number a row `(N,)`, so that it broadcasts over `x` `(N, ...)`."""
    if not isinstance(value, Tensor):
        return torch.full((1,) * x.dim(), value, dtype=x.dtype, device=x.device)
    return spread(value.to(x.dtype), x)


class Ball(ABC):
    """All points of [0, 1] within some distance of an image.

    None of these functions is meant to be differentiated through: projecting inside a graph would
    bring in the gradient of clamp, which is zero on its bounds.
    """

    name: ClassVar[str]

    @abstractmethod
    def _norm(self, offset: Tensor) -> Tensor:
        """Length of each row of `offset` `(N, d)`."""

    @abstractmethod
    def direction(self, gradient: Tensor) -> Tensor:
        """The step of unit length along which a linear function rises most; 0 where flat."""

    @abstractmethod
    def _into(self, z: Tensor, x: Tensor, radius: Tensor) -> Tensor:
        """Project points `(N, ...)` into the ball alone; points inside stay to the last bit."""

    @abstractmethod
    def slack(self, x: Tensor) -> float:
        """Bound on how far float rounding of a pixel sum can move a point of `x`'s type."""

    def distance(self, z: Tensor, x: Tensor) -> Tensor:
        """Distance of each row, measured in float64 where there is one, `(N,)`."""
        wide = torch.float32 if x.device.type == "mps" else torch.float64
        return self._norm((z.detach().to(wide) - x.detach().to(wide)).flatten(1))

    def project(self, z: Tensor, x: Tensor, radius: float | Tensor) -> Tensor:
        """Move points into the ball around `x` and into [0, 1].

        Args:
            z: Points `(N, ...)`.
            x: Centres `(N, ...)`, in [0, 1].
            radius: One radius, or one a row `(N,)`.

        Returns:
            Points `(N, ...)`. Clipping to [0, 1] moves every pixel towards its centre's, so the
            result is in both sets.
        """
        return self._into(z.detach(), x.detach(), per_row(radius, x)).clamp_(0, 1)

    def project_strictly(self, z: Tensor, x: Tensor, radius: float | Tensor) -> Tensor:
        """Like `project`, but the measured `distance` never exceeds `radius`, not by an ulp."""
        safe = (per_row(radius, x) - self.slack(x)).clamp_min(0)
        return self.project(z, x, safe.flatten())

    def random_offset(self, x: Tensor, radius: float | Tensor, key: Tensor) -> Tensor:
        """The paper's random start: uniform over directions and over lengths up to `radius`.

        Args:
            x: Images `(N, ...)`.
            radius: One radius, or one a row `(N,)`.
            key: Keys of the random numbers `(N,)`.

        Returns:
            Offsets u · radius · g / ‖g‖ `(N, ...)` with g Gaussian and u uniform in [0, 1).
        """
        size = x[0].numel()
        gauss = noise.normal(key, size)
        length = noise.uniform(noise.keys(1, key), 1)
        offset = gauss / self._norm(gauss)[:, None] * length
        return offset.to(x.dtype).view_as(x) * per_row(radius, x)

    @abstractmethod
    def uniform_offset(self, x: Tensor, radius: float | Tensor, key: Tensor) -> Tensor:
        """A point drawn uniformly from the ball (before clipping to [0, 1]), `(N, ...)`."""


class _Linf(Ball):
    name = "Linf"

    def _norm(self, offset: Tensor) -> Tensor:
        return offset.abs().amax(dim=1)

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def _into(self, z: Tensor, x: Tensor, radius: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(z, x - radius), x + radius)

    def slack(self, x: Tensor) -> float:
        return torch.finfo(x.dtype).eps

    def uniform_offset(self, x: Tensor, radius: float | Tensor, key: Tensor) -> Tensor:
        cube = 2 * noise.uniform(key, x[0].numel()) - 1
        return cube.to(x.dtype).view_as(x) * per_row(radius, x)


class _L2(Ball):
    name = "L2"

    def _norm(self, offset: Tensor) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(offset, dim=1)
        return lengths

    def _lengths(self, offset: Tensor) -> Tensor:
        return spread(self._norm(offset.flatten(1)), offset)

    def direction(self, gradient: Tensor) -> Tensor:
        # Squares of a sure network's gradients underflow; divided by the largest entry they do not.
        largest = spread(gradient.flatten(1).abs().amax(dim=1), gradient)
        scaled = gradient / largest
        return torch.where(largest > 0, scaled / self._lengths(scaled), torch.zeros_like(gradient))

    def _into(self, z: Tensor, x: Tensor, radius: Tensor) -> Tensor:
        offset = z - x
        length = self._lengths(offset)
        return torch.where(length > radius, x + offset * (radius / length), z)

    def slack(self, x: Tensor) -> float:
        return float(torch.finfo(x.dtype).eps * 4 * x[0].numel() ** 0.5)

    def uniform_offset(self, x: Tensor, radius: float | Tensor, key: Tensor) -> Tensor:
        size = x[0].numel()
        gauss = noise.normal(key, size)
        length = noise.uniform(noise.keys(1, key), 1) ** (1 / size)
        offset = gauss / self._norm(gauss)[:, None] * length
        return offset.to(x.dtype).view_as(x) * per_row(radius, x)


LINF = BALLS.register("Linf")(_Linf())
L2 = BALLS.register("L2")(_L2())
