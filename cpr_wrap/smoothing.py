"""Exact forward, smoothed backward: gradients for searches where a network's own are zero.

A ReLU below its threshold, a clamp beyond its bounds and the smaller inputs of a max-pooling have
zero gradient, although a longer step would change the output. Inside `smoothed`, every such
function keeps its exact value, but its backward is that of a smooth approximation. The network is
not changed. Only searches use it: judging, and what a rule computes for its verdict, run outside
the block or under `exact`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import Self

_FEW = 8  # so few values say little about the spread in a channel: take the whole sample's

# From (strength, plain function, its arguments) to its result, or to NotImplemented.
_Replacement = Callable[..., Any]
_Plain = Callable[[Tensor], Tensor]


def _spread(x: Tensor, *, around_zero: bool) -> Tensor:
    """Root mean square distance of values `(N, C, ...)` from 0 or from their mean, by channel.

    It broadcasts over `x`, and is never 0 nor so small that its inverse is infinite.
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

# From a function's arguments after its input to its shape. `_` is `inplace`, looked at elsewhere.
_SHAPES: dict[str, Callable[..., _Shape | None]] = {
    "relu": lambda _=False: _RELU,
    "relu6": lambda _=False: _clamp(0, 6),
    "leaky_relu": lambda negative_slope=0.01, _=False: _Shape(
        negative_slope, ((0, 1 - negative_slope),)
    ),
    "hardtanh": lambda min_val=-1.0, max_val=1.0, _=False: _clamp(min_val, max_val),
    "hardsigmoid": lambda _=False: _Shape(0, ((-3, 1 / 6), (3, -1 / 6))),
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


_BY_NAME: dict[str, _Replacement] = {
    **dict.fromkeys(_SHAPES, _bend),
    "hardswish": _hardswish,
    **dict.fromkeys(("maximum", "minimum"), _larger_or_smaller),
    **dict.fromkeys(("amax", "amin"), _extreme),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), _pool),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d"), _adaptive_pool),
}
_REPLACEMENTS: dict[Any, _Replacement] = {
    getattr(home, form): replacement
    for name, replacement in _BY_NAME.items()
    for home in (torch, F, Tensor)
    for form in (name, f"{name}_")
    if hasattr(home, form)
}


STRENGTH = 0.15
"""Width of the smoothing, as a share of the spread of a function's inputs."""

_blocks: list[bool] = []  # that the code runs in, from the outside: `smoothed`, or not


def active() -> bool:
    """Whether gradients of what is computed now would be smoothed."""
    return bool(_blocks) and all(_blocks)


@contextmanager
def exact() -> Iterator[None]:
    """Disable `smoothed` inside the block, at any nesting depth.

    Example:
        >>> import torch
        >>> from cpr_wrap.smoothing import smoothed
        >>> x = torch.tensor([[-1.0, 2.0]], requires_grad=True)
        >>> with smoothed(), exact():
        ...     y = x.relu()
        >>> torch.autograd.grad(y.sum(), x)[0].tolist()
        [[0.0, 1.0]]
    """
    _blocks.append(False)
    try:
        yield
    finally:
        _blocks.pop()


def obstacle(network: nn.Module) -> str:
    """The reason why a network's backward cannot be smoothed; empty if it can."""
    for name, module in network.named_modules():
        where = f"module {name!r}" if name else "the network"
        # The marks of torch.compile(module) and of module.compile().
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None):
            return f"{where} is compiled: pass the module that torch.compile was given"
        if isinstance(module, torch.jit.ScriptModule):
            return f"{where} is TorchScript: pass the module that it was made from"
    return ""


class smoothed(TorchFunctionMode):
    """Inside the block, smooth the backward of piecewise linear functions.

    These are relu, relu6, leaky_relu, hardtanh, hardsigmoid, hardswish, clamp, abs, max-pooling,
    amax, amin, maximum and minimum, as functions, methods and modules, in place or not. Graphs made
    inside keep the smoothed backward after the block. Calls without gradients are not changed, and
    neither is code compiled by torch.compile or TorchScript (see `obstacle`).

    The gradient of a row depends on that row alone. Each sample has its own widths: `strength`
    times the spread in each channel, which is the root mean square distance from the nearest kink
    (for a maximum, the standard deviation).

    Attributes:
        replaced: Calls replaced so far; 0 means that there was nothing to smooth.

    Example:
        >>> import torch
        >>> x = torch.tensor([[-1.0, 2.0]], requires_grad=True)
        >>> with smoothed():
        ...     y = x.relu()
        >>> y.tolist(), bool((torch.autograd.grad(y.sum(), x)[0] > 0).all())
        ([[0.0, 2.0]], True)
    """

    def __init__(self, strength: float = STRENGTH) -> None:
        super().__init__()
        if not strength > 0:
            raise ValueError(f"strength: expected a positive number, got {strength}")
        self.strength = strength
        self.replaced = 0

    def __enter__(self) -> Self:
        _blocks.append(True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        _blocks.pop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hand on to the plain function, or to its replacement."""
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        if replacement is None or not _concerns(args):
            return func(*args, **kwargs)
        with exact():
            result = replacement(self.strength, func, *args, **kwargs)
            if result is NotImplemented:
                return func(*args, **kwargs)
        self.replaced += 1
        return result


def _concerns(args: tuple[Any, ...]) -> bool:
    """Whether a gradient will be asked of a call, and it is on samples with features."""
    if not all(_blocks) or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        return False
    return bool(args[0].dim() > 1 and args[0].is_floating_point())
