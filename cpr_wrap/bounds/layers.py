"""How each layer carries a box forward and linear bounds backward, with room for rounding.

A box is a center c and a radius r for each number. Whatever order a processor adds in, a sum of n
products in floating point is off by at most gamma(n) times the sum of their absolute values
(Higham 2002, section 3.1). Each layer adds a multiple of that to its radius. The multiple covers
the network's own rounding, the rounding of the center and the rounding of the radius.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input
from torch.nn.modules.utils import _pair

ROUNDING = 6.0
"""How many times gamma one rounding margin is: three errors, and two spare (see docs/theory.md)."""

Map = Callable[[Tensor], Tensor]
Pair = tuple[int, int]


def unit(x: Tensor) -> float:
    """The unit roundoff of a tensor's type; cuDNN's short products where they are allowed."""
    if x.is_cuda and (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32):
        return 2.0**-11
    return float(torch.finfo(x.dtype).eps) / 2


def gamma(terms: int, x: Tensor) -> float:
    """Relative error of a sum of `terms` products of `x`'s type, in any order of summation."""
    share = terms * unit(x)
    if share >= 0.5:
        raise ValueError(f"a layer sums {terms} products, too many for a bound in {x.dtype}")
    return share / (1 - share)


@dataclass(frozen=True, eq=False)
class Box:
    """All tensors within `radius` of `center`, number by number; both `(N, ...)`."""

    center: Tensor
    radius: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape of one row."""
        return self.center.shape[1:]

    @property
    def low(self) -> Tensor:
        """The smallest values `(N, ...)`."""
        return self.center - self.radius

    @property
    def high(self) -> Tensor:
        """The largest values `(N, ...)`."""
        return self.center + self.radius

    @property
    def size(self) -> Tensor:
        """The largest absolute values `(N, ...)`."""
        return self.center.abs() + self.radius

    def widened(self, margin: float) -> Box:
        """The same box with room for a few roundings of each number."""
        if not margin:
            return self
        room = margin * ROUNDING * gamma(4, self.center)
        return Box(self.center, self.radius + room * self.size)


def hull(low: Tensor, high: Tensor) -> Box:
    """The box between two tensors `(N, ...)`."""
    return Box((low + high) / 2, (high - low) / 2)


@dataclass(frozen=True, eq=False, kw_only=True)
class Affine:
    """x to Wx + b."""

    forward: Map  # applies W and adds b
    absolute: Map  # applies |W|
    back: Map  # applies the transpose of W to rows (M, ...) shaped like the output
    terms: int  # how many products are summed for a number of the output, the bias included
    bias: Tensor | None = None  # b, shaped like a row of the output or to broadcast to it
    weight: Tensor | None = None  # absolute size of b, where it is itself a sum; |b| if None
    fan: int = 1  # how many products `back` sums for a number
    pointwise: bool = False  # whether numbers are only multiplied, by one constant per channel
    kernel: Tensor | None = None  # the weights of a convolution that `window` describes
    window: tuple[Pair, Pair, Pair] | None = None  # size, stride, padding; None: rows need all maps

    def box(self, margin: float, box: Box) -> Box:
        """The box of the outputs."""
        center = self.forward(box.center)
        if not margin:
            return Box(center, self.absolute(box.radius))
        room = margin * ROUNDING * gamma(self.terms, center)
        radius = self.absolute(box.radius + room * box.size)
        return Box(center, radius + room * self._bias_size(center))

    def _bias_size(self, like: Tensor) -> Tensor:
        """Absolute size of b; a product that underflows is off by less than the added number."""
        weight = self.bias if self.weight is None else self.weight
        tiny = like.new_tensor(self.terms * torch.finfo(like.dtype).tiny)
        return tiny if weight is None else weight.abs() + tiny

    def size(self, box: Box) -> Tensor:
        """Sum of the absolute values of all products `(N, ...)`."""
        return self.absolute(box.size) + self._bias_size(box.center)


class Relu:
    """max(x, 0)."""

    def box(self, margin: float, box: Box) -> Box:
        """The box of the outputs."""
        return hull(box.low.relu(), box.high.relu()).widened(margin)


@dataclass(frozen=True, eq=False)
class MaxPool:
    """The largest number of each window of a map."""

    kernel: Pair
    stride: Pair
    padding: Pair

    def pool(self, x: Tensor) -> Tensor:
        """The largest numbers `(N, C, H', W')` of maps `(N, C, H, W)`."""
        return F.max_pool2d(x, self.kernel, self.stride, self.padding)

    def tiles(self, shape: torch.Size) -> bool:
        """Whether the windows tile maps of a shape `(C, H, W)`."""
        whole = all(n % k == 0 for n, k in zip(shape[1:], self.kernel, strict=True))
        return whole and self.kernel == self.stride and self.padding == (0, 0)

    def windows(self, x: Tensor) -> Tensor:
        """The numbers of each window `(N, C, K, L)`; -inf where it reaches beyond the map."""
        (up, left), (high, wide) = self.padding, self.kernel
        padded = F.pad(x, (left, left, up, up), value=-torch.inf)
        parts = padded.unfold(2, high, self.stride[0]).unfold(3, wide, self.stride[1])
        return parts.flatten(4).flatten(2, 3).transpose(2, 3)

    def joined(self, parts: Tensor, shape: torch.Size) -> Tensor:
        """Sums over windows of their numbers `(N, C, K, L)`, as maps of a shape `(C, H, W)`."""
        flat = parts.reshape(len(parts), -1, parts.shape[-1])
        return F.fold(flat, shape[1:], self.kernel, padding=self.padding, stride=self.stride)

    def box(self, margin: float, box: Box) -> Box:
        """The box of the outputs."""
        return hull(self.pool(box.low), self.pool(box.high)).widened(margin)


@dataclass(frozen=True, eq=False)
class Reshape:
    """The same numbers in another shape."""

    forward: Map

    def box(self, margin: float, box: Box) -> Box:
        """The box of the outputs."""
        del margin
        return Box(self.forward(box.center), self.forward(box.radius))


class Add:
    """The sum of two."""

    def box(self, margin: float, first: Box, second: Box) -> Box:
        """The box of the outputs."""
        center, radius = first.center + second.center, first.radius + second.radius
        if margin:
            room = margin * ROUNDING * gamma(4, center)
            radius = radius + room * (first.size + second.size)
        return Box(center, radius)


@dataclass(frozen=True, eq=False)
class Concat:
    """Two side by side, as columns."""

    split: int

    def box(self, margin: float, first: Box, second: Box) -> Box:
        """The box of the outputs."""
        del margin
        pairs = (first.center, second.center), (first.radius, second.radius)
        return Box(*(torch.cat(pair, dim=1) for pair in pairs))


Layer = Affine | Relu | MaxPool | Reshape | Add | Concat


def linear(layer: nn.Linear) -> Affine:
    """A fully connected layer on rows `(N, d)`."""
    weight = layer.weight
    return Affine(
        forward=layer,
        absolute=lambda x: F.linear(x, weight.abs()),
        back=lambda a: a @ weight,
        bias=layer.bias,
        terms=layer.in_features + 1,
        fan=layer.out_features,
    )


def convolution(layer: nn.Conv2d, shape: torch.Size) -> Affine:
    """A convolution of maps of a shape `(C, H, W)`."""
    weight, stride, dilation, groups = layer.weight, layer.stride, layer.dilation, layer.groups
    padding = layer.padding
    assert not isinstance(padding, str)
    plain = groups == 1 and dilation == (1, 1)

    def back(a: Tensor) -> Tensor:
        size = (len(a), *shape)
        moved: Tensor = conv2d_input(size, weight, a, stride, padding, dilation, groups)
        return moved

    return Affine(
        forward=layer,
        absolute=lambda x: F.conv2d(x, weight.abs(), None, stride, padding, dilation, groups),
        back=back,
        bias=None if layer.bias is None else layer.bias[:, None, None],
        terms=weight[0].numel() + 1,
        fan=weight[:, 0].numel(),
        kernel=weight,
        window=(_pair(layer.kernel_size), _pair(stride), _pair(padding)) if plain else None,
    )


def scale(factor: Tensor, shift: Tensor | None = None, weight: Tensor | None = None) -> Affine:
    """Each number times a constant, plus a constant; both broadcast to a row of the input."""
    return Affine(
        forward=lambda x: x * factor if shift is None else x * factor + shift,
        absolute=lambda x: x * factor.abs(),
        back=lambda a: a * factor,
        bias=shift,
        weight=weight,
        pointwise=factor.shape[1:].numel() == 1 if factor.dim() else True,
        terms=8,  # of batch norm: a root, a division, two products, two sums
    )


def batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, dims: int) -> Affine:
    """Batch norm with its running statistics, on tensors of `dims` dimensions."""
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        raise ValueError("batch norm without running statistics has no bounds: they mix the batch")
    factor = (variance + layer.eps).rsqrt()
    if layer.weight is not None:
        factor = factor * layer.weight
    own = torch.zeros_like(mean) if layer.bias is None else layer.bias
    parts = (factor, own - mean * factor, own.abs() + (mean * factor).abs())
    return scale(*(part.view(-1, *(1,) * (dims - 2)) for part in parts))


def average(pool: Map, shape: torch.Size, terms: int) -> Affine:
    """An average over windows of maps of a shape `(C, H, W)`."""

    def back(a: Tensor) -> Tensor:
        with torch.enable_grad():
            x = a.new_zeros(len(a), *shape, requires_grad=True)
            return torch.autograd.grad(pool(x), x, a)[0]

    return Affine(
        forward=pool, absolute=lambda x: pool(x).abs(), back=back, terms=terms + 1, fan=terms
    )
