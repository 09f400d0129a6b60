"""Functions with their exact value and a smoothed derivative, for `cpr_wrap.smoothing`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_FEW = 8  # so few values say little about the spread in a channel: take the whole sample's

Replacement = Callable[..., Any]
"""From (strength, plain function, its arguments) to its result, or to NotImplemented."""
_Plain = Callable[[Tensor], Tensor]


def _spread(x: Tensor, *, around_zero: bool) -> Tensor:
    """Root mean square distance of values `(N, C, ...)` from 0 or from their mean.

    Returns:
        A number for each channel of each sample, shaped to broadcast over `x`, never 0 nor so
        small that its inverse is infinite.
    """
    first = 2 if math.prod(x.shape[2:]) >= _FEW else 1
    dims = list(range(first, x.dim()))
    # In two steps it is several times faster than torch.std on a CPU.
    offset = x if around_zero else x - x.mean(dim=dims, keepdim=True)
    length: Tensor = torch.linalg.vector_norm(offset, dim=dims, keepdim=True)
    least = math.sqrt(torch.finfo(x.dtype).tiny)
    return (length / math.sqrt(math.prod(x.shape[first:]))).clamp_min(least)


class _Shape(NamedTuple):
    """A piecewise linear function: its first slope, and (place, change of slope) of each bend."""

    first: float
    bends: tuple[tuple[float, float], ...]


def _clamp(min: Any = None, max: Any = None) -> _Shape | None:  # noqa: A002
    """The shape of a clamp, unless its bounds are tensors."""
    bends = [(bound, change) for bound, change in ((min, 1), (max, -1)) if bound is not None]
    if any(isinstance(bound, Tensor) for bound, _ in bends):
        return None
    return _Shape(float(min is None), tuple(bends))


_RELU = _Shape(0, ((0, 1),))
_HARDSIGMOID = _Shape(0, ((-3, 1 / 6), (3, -1 / 6)))

# From a function's arguments after its input to its shape. `_` is `inplace`, looked at elsewhere.
_SHAPES: dict[str, Callable[..., _Shape | None]] = {
    "relu": lambda _=False: _RELU,
    "relu6": lambda _=False: _clamp(0, 6),
    "leaky_relu": lambda negative_slope=0.01, _=False: _Shape(
        negative_slope, ((0, 1 - negative_slope),)
    ),
    "hardtanh": lambda min_val=-1.0, max_val=1.0, _=False: _clamp(min_val, max_val),
    "hardsigmoid": lambda _=False: _HARDSIGMOID,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp,
    "clamp_max": functools.partial(_clamp, None),
    "abs": lambda: _Shape(-1, ((0, 2),)),
}


class _Bent(torch.autograd.Function):
    """A function of single values, with the derivative of its rounded shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plain: _Plain, shape: _Shape, strength: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.shape, ctx.strength = shape, strength
        return plain(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        offsets = [x - place if place else x for place, _ in ctx.shape.bends]
        nearest = offsets[0] if len(offsets) == 1 else torch.stack(offsets).abs().amin(dim=0)
        width = _spread(nearest, around_zero=True) * ctx.strength
        gates = [(offset / width).sigmoid_() for offset in offsets]
        if ctx.shape == _RELU:
            return gradient * gates[0], None, None, None
        changes = [gate * change for gate, (_, change) in zip(gates, ctx.shape.bends, strict=True)]
        return gradient * sum(changes, start=ctx.shape.first), None, None, None


def _bend(strength: float, plain: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    name = plain.__name__
    inplace = kwargs.pop("inplace", False)
    mutates = name.endswith("_") or (bool(args) and args[-1] is True)
    shape = _SHAPES[name.rstrip("_")](*args, **kwargs)
    if shape is None:
        return NotImplemented

    def value(v: Tensor) -> Any:
        return plain(v.clone() if mutates else v, *args, **kwargs)

    if inplace or mutates:
        return x.copy_(_Bent.apply(x.clone(), value, shape, strength))
    return _Bent.apply(x, value, shape, strength)


def _with_value(value: Tensor, soft: Tensor) -> Tensor:
    """A value with the gradient of a soft version of it; adding 0 changes no bit."""
    return value.detach() + (soft - soft.detach())


def _hardswish(strength: float, plain: Any, x: Tensor, inplace: bool = False) -> Any:
    before = x.clone() if inplace else x
    gate = _bend(strength, F.hardsigmoid, before)
    result = _with_value(plain(before.detach()), before * gate)
    return x.copy_(result) if inplace else result


def _larger_or_smaller(strength: float, plain: Any, a: Tensor, b: Tensor) -> Any:
    lead = _bend(strength, torch.relu, a - b)
    return _with_value(plain(a, b), b + lead if plain.__name__ == "maximum" else a - lead)


def _extreme(strength: float, plain: Any, x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    dims = [each % x.dim() for each in ([dim] if isinstance(dim, int) else dim)]
    if not dims or 0 in dims:  # over samples, which must not depend on each other
        return NotImplemented
    with torch.no_grad():
        best = plain(x, dims, True)
        finite = x.isfinite()  # -inf marks entries that must not win; 0 times it would be NaN
        width = _spread(torch.where(finite, x, best), around_zero=False) * strength
        weights = torch.where(finite, (-(x - best).abs() / width).exp(), 0)
        weights /= weights.sum(dim=dims, keepdim=True)
    soft = (torch.where(finite, x, 0) * weights).sum(dim=dims, keepdim=keepdim)
    return _with_value(plain(x, dims, keepdim), soft)


class _Windows(NamedTuple):
    """Where a pooling looks: its settings for each dimension after the first two."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def layout(self, size: torch.Size, count: torch.Size) -> tuple[list[int], list[Any]]:
        """How to pad an input, and where then each entry of all `count` windows is."""
        sides: list[int] = []
        along = []
        for length, number, kernel, stride, before, gap in zip(size, count, *self, strict=True):
            span = (number - 1) * stride + 1
            sides = [before, max(0, span + gap * (kernel - 1) - before - length), *sides]
            along.append([slice(gap * k, gap * k + span, stride) for k in range(kernel)])
        return sides, [(..., *place) for place in product(*along)]


def _pad(x: Tensor, sides: list[int]) -> Tensor:
    return F.pad(x, sides, value=-torch.inf) if any(sides) else x  # without any it would copy


class _Pooled(torch.autograd.Function):
    """A max-pooling that shares the gradient among a window's entries by a softmax."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plain: _Plain, windows: _Windows, strength: float) -> Tensor:
        value = plain(x)
        # A copy: a ReLU in place behind the pooling changes what is returned.
        ctx.save_for_backward(x, value.clone())
        ctx.windows, ctx.strength = windows, strength
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, value = ctx.saved_tensors
        scale = 1 / (_spread(value, around_zero=False) * ctx.strength)
        sides, places = ctx.windows.layout(x.shape[2:], value.shape[2:])
        wide = _pad(x, sides)
        weights = [(wide[place] - value).mul_(scale).exp_() for place in places]
        share = gradient / functools.reduce(torch.add, weights)
        result = torch.zeros_like(wide)
        for place, weight in zip(places, weights, strict=True):
            result[place].addcmul_(weight, share)
        return _pad(result, [-side for side in sides]), None, None, None


def _pool(
    strength: float,
    plain: Any,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    def each(setting: Any) -> tuple[int, ...]:
        return (setting,) * (x.dim() - 2) if isinstance(setting, int) else tuple(setting)

    kernel = each(kernel_size)
    if return_indices or len(kernel) != x.dim() - 2 or x.dim() < 3:
        return NotImplemented
    windows = _Windows(kernel, each(stride or kernel), each(padding), each(dilation))

    def value(v: Tensor) -> Any:
        return plain(v, kernel_size, stride, padding, dilation, ceil_mode)

    return _Pooled.apply(x, value, windows, strength)


def _adaptive_pool(
    strength: float, plain: Any, x: Tensor, output_size: Any, return_indices: bool = False
) -> Any:
    sizes = x.shape[2:]
    counts = (output_size,) * len(sizes) if isinstance(output_size, int) else output_size
    pairs = [(size, count or size) for size, count in zip(sizes, counts, strict=True)]
    if return_indices or any(size % count for size, count in pairs):
        return NotImplemented
    kernel = tuple(size // count for size, count in pairs)
    windows = _Windows(kernel, kernel, (0,) * len(kernel), (1,) * len(kernel))
    return _Pooled.apply(x, lambda v: plain(v, output_size), windows, strength)


_BY_NAME: dict[str, Replacement] = {
    **dict.fromkeys(_SHAPES, _bend),
    "hardswish": _hardswish,
    **dict.fromkeys(("maximum", "minimum"), _larger_or_smaller),
    **dict.fromkeys(("amax", "amin"), _extreme),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), _pool),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d"), _adaptive_pool),
}
REPLACEMENTS: dict[Any, Replacement] = {
    getattr(home, form): replacement
    for name, replacement in _BY_NAME.items()
    for home in (torch, F, Tensor)
    for form in (name, f"{name}_")
    if hasattr(home, form)
}
"""What to call instead of each function."""
