"""Threat models: which perturbations are allowed, how to measure them, and how to project.

A threat model is a set of perturbations, scaled by a radius. The size of a perturbation is its
*gauge*: the smallest radius at which the set contains it. `Linf` and `L2` are registered. To add
your own, write a subclass of `ThreatModel` and call `THREATS.register("name")(MyModel())`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap._registry import Registry

THREATS: Registry[ThreatModel] = Registry("threat model")


def threat(norm: str | ThreatModel) -> ThreatModel:
    """Find a threat model by name, e.g. `Linf` or `l2`; a registered one is returned unchanged."""
    if isinstance(norm, ThreatModel):
        known: object = THREATS.get(norm.name)
        if known is not norm:
            raise ValueError(
                f"threat model {norm.name!r}: expected a registered one, because results "
                f"store its name; call THREATS.register({norm.name!r}) on it first"
            )
        return norm
    folded = {name.lower(): name for name in THREATS}
    return THREATS[folded.get(str(norm).lower(), norm)]


def spread(value: Tensor, x: Tensor) -> Tensor:
    """View one value per row `(N,)` so that it broadcasts over `x` `(N, ...)`."""
    return value.view(-1, *(1,) * (x.dim() - 1))


def per_row(value: float | Tensor, x: Tensor) -> Tensor:
    """Shape a number, or one number per row `(N,)`, so that it broadcasts over `x` `(N, ...)`."""
    if not isinstance(value, Tensor):
        return torch.full((1,) * x.dim(), value, dtype=x.dtype, device=x.device)
    return spread(value.to(x.dtype), x)


def wide(x: Tensor) -> torch.dtype:
    """The type in which distances are measured: float64 if the device supports it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


class ThreatModel(ABC):
    """The points of [0, 1] whose distance from an image, by a gauge, is at most a radius.

    None of these functions should be differentiated: projecting inside a graph would introduce the
    gradient of clamp, which is zero on its bounds.

    Example:
        >>> from cpr_wrap.geometry import threat
        >>> import torch
        >>> x = torch.full((1, 1, 2, 2), 0.5)
        >>> z = threat("Linf").project(x + 0.3, x, 0.1)
        >>> round(float(z[0, 0, 0, 0]), 4), round(float(threat("L2").distance(z, x)), 4)
        (0.6, 0.2)
    """

    name: ClassVar[str]

    @abstractmethod
    def gauge(self, offset: Tensor) -> Tensor:
        """Size of each row of `offset` `(N, d)`, `(N,)`."""

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """The step of gauge 1 along which a linear function rises most; 0 if it is flat."""

    @abstractmethod
    def _into(self, z: Tensor, x: Tensor, radius: Tensor) -> Tensor:
        """Project points `(N, ...)` into the set alone; points inside stay to the last bit."""

    @abstractmethod
    def slack(self, x: Tensor) -> float:
        """Bound on how far float rounding of a pixel sum can move a point of `x`'s type."""

    @abstractmethod
    def uniform_offset(self, x: Tensor, radius: float | Tensor, key: Tensor) -> Tensor:
        """A perturbation drawn uniformly from the set (before clipping to [0, 1]), `(N, ...)`."""

    def steepness(self, gradient: Tensor) -> Tensor:
        """How much a linear function rises along its steepest step `(N,)`."""
        return (gradient * self.steepest(gradient)).flatten(1).sum(dim=1)

    def everything(self, x: Tensor) -> float:
        """The radius at which the set around any image of `x`'s shape holds all of [0, 1]."""
        return float(self.gauge(torch.ones(1, x[0].numel(), dtype=torch.float64))[0])

    def distance(self, z: Tensor, x: Tensor) -> Tensor:
        """Gauge of each row's perturbation, measured in float64 where there is one, `(N,)`."""
        dtype = wide(x)
        return self.gauge((z.detach().to(dtype) - x.detach().to(dtype)).flatten(1))

    def project(self, z: Tensor, x: Tensor, radius: float | Tensor) -> Tensor:
        """Move points into the set around `x` and into [0, 1].

        Args:
            z: Points `(N, ...)`.
            x: Centers `(N, ...)`, in [0, 1].
            radius: One radius, or one per row `(N,)`.

        Returns:
            Points `(N, ...)`. Clipping to [0, 1] moves every pixel toward its center's, so the
            result is in both sets.
        """
        if not len(z):
            return z.detach()
        return self._into(z.detach(), x.detach(), per_row(radius, x)).clamp_(0, 1)

    def excess(self, z: Tensor, x: Tensor, radius: float) -> Tensor:
        """How much projecting each of `z` `(D, ...)` into each set changes it.

        Args:
            z: Points `(D, ...)`, in [0, 1].
            x: Centers `(N, ...)`, in [0, 1].
            radius: Radius of the sets.

        Returns:
            The sum of the changes of all pixels `(N, D)`.
        """
        rows = [(self.project(z, c.expand_as(z), radius) - z).abs().flatten(1).sum(1) for c in x]
        return torch.stack(rows) if rows else x.new_zeros(0, len(z))

    def project_strictly(self, z: Tensor, x: Tensor, radius: float | Tensor) -> Tensor:
        """Like `project`, but the measured `distance` never exceeds `radius`, not by an ulp."""
        safe = (per_row(radius, x) - self.slack(x)).clamp_min(0)
        return self.project(z, x, safe.flatten())

    def random_offset(self, x: Tensor, radius: float | Tensor, key: Tensor) -> Tensor:
        """The paper's random start: uniform over directions and over lengths up to `radius`.

        Args:
            x: Images `(N, ...)`.
            radius: One radius, or one per row `(N,)`.
            key: Keys of the random numbers `(N,)`.

        Returns:
            Offsets u · radius · g / ‖g‖ `(N, ...)` with g Gaussian and u uniform in [0, 1).
        """
        gauss = noise.normal(key, x[0].numel())
        length = noise.uniform(noise.keys(1, key), 1)
        return self._scaled(gauss, length, x, radius)

    def _scaled(
        self, direction: Tensor, length: Tensor, x: Tensor, radius: float | Tensor
    ) -> Tensor:
        """Offsets `(N, ...)` along directions `(N, d)`, of some shares `(N, 1)` of the radius."""
        offset = direction / self.gauge(direction)[:, None] * length
        return offset.to(x.dtype).view_as(x) * per_row(radius, x)

    def __repr__(self) -> str:
        return self.name


class _Linf(ThreatModel):
    name = "Linf"

    def gauge(self, offset: Tensor) -> Tensor:
        return offset.abs().amax(dim=1)

    def steepest(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def _into(self, z: Tensor, x: Tensor, radius: Tensor) -> Tensor:
        return z.clamp(x - radius, x + radius)

    def slack(self, x: Tensor) -> float:
        return torch.finfo(x.dtype).eps

    def excess(self, z: Tensor, x: Tensor, radius: float) -> Tensor:
        # relu(a) = (a + |a|) / 2 turns the sum into two L1 distances, which are fast.
        z, x = z.flatten(1), x.flatten(1)
        above, below = (torch.cdist(x + side * radius, z, p=1) for side in (1, -1))
        return ((above + below) / 2 - radius * z.shape[1]).clamp_min(0)

    def uniform_offset(self, x: Tensor, radius: float | Tensor, key: Tensor) -> Tensor:
        cube = 2 * noise.uniform(key, x[0].numel()) - 1
        return cube.to(x.dtype).view_as(x) * per_row(radius, x)


class _L2(ThreatModel):
    name = "L2"

    def gauge(self, offset: Tensor) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(offset, dim=1)
        return lengths

    def _lengths(self, offset: Tensor) -> Tensor:
        return spread(self.gauge(offset.flatten(1)), offset)

    def steepest(self, gradient: Tensor) -> Tensor:
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
        length = noise.uniform(noise.keys(1, key), 1) ** (1 / size)
        return self._scaled(noise.normal(key, size), length, x, radius)


LINF = THREATS.register("Linf")(_Linf())
L2 = THREATS.register("L2")(_L2())
