"""Reads a network with torch.fx and runs boxes through its layers, one entry per layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.utils import _pair

from cpr_wrap.bounds import layers
from cpr_wrap.bounds.layers import Add, Box, Concat, Layer, MaxPool, Relu, Reshape


class UnsupportedLayerError(TypeError):
    """A network has a layer for which there are no bounds."""


@dataclass(eq=False)
class Entry:
    """A layer, what it was given, and the box of its outputs.

    Attributes:
        layer: None for the input.
        parents: The entries that it reads.
        box: Bounds of its outputs; CROWN replaces it by a tighter one.
    """

    layer: Layer | None
    parents: tuple[Entry, ...]
    box: Box

    @property
    def shape(self) -> torch.Size:
        """Shape of one output."""
        return self.box.center.shape[1:]


def record(network: nn.Module, box: Box, margin: float) -> list[Entry]:
    """Run a box through a network.

    Args:
        network: In eval mode, from `(N, ...)` to outputs `(N, k)`.
        box: Bounds of its input.
        margin: How many rounding margins each layer adds; 0 for none.

    Returns:
        An entry for each layer in the order of computation, the input first, the outputs last.
    """
    reader = _Reader(*_traced(network), margin)
    try:
        last = reader.run(Entry(None, (), box))
    except UnsupportedLayerError as error:
        # The interpreter adds where it was in the graph, over many lines.
        raise UnsupportedLayerError(str(error).partition("\n")[0]) from None
    if not isinstance(last, Entry):
        raise UnsupportedLayerError(f"no bounds for a network that returns {type(last).__name__}")
    return reader.entries


_TRACES: WeakKeyDictionary[nn.Module, tuple[Any, nn.Module, fx.Graph]] = WeakKeyDictionary()


def _traced(network: nn.Module) -> tuple[nn.Module, fx.Graph]:
    """A network's graph, and a shell to run it on: layers and weights are read when it runs.

    Tracing writes constants to the module that it is given, so it is given a shallow copy.
    """
    # What a forward may branch on or read as a number; the rest is looked up when it runs.
    plain = (bool, int, float, str, tuple)
    seen = [
        (module, [v if isinstance(v, plain) else id(v) for v in vars(module).values()])
        for module in network.modules()
    ][1:]
    own = [v if isinstance(v, plain) else id(v) for v in vars(network).values()]
    known = _TRACES.get(network)
    if known is None or known[0] != [own, *seen]:
        shell = copy(network)
        try:
            graph = fx.Tracer().trace(shell)
        except Exception as error:
            raise UnsupportedLayerError(
                f"no bounds for {type(network).__name__}: torch.fx cannot read its forward "
                f"({error})"
            ) from error
        known = _TRACES[network] = [own, *seen], shell, graph
    return known[1:]


class _Reader(fx.Interpreter):
    """Runs the traced network on entries in place of tensors."""

    def __init__(self, network: nn.Module, graph: fx.Graph, margin: float) -> None:
        super().__init__(network, graph=graph)
        self.margin = margin
        self.entries: list[Entry] = []

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The input."""
        entry = super().placeholder(target, args, kwargs)
        self.entries.append(entry)
        return entry

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A layer that is a module."""
        del kwargs
        module = self.fetch_attr(target)
        for kind, make in _MODULES.items():
            if isinstance(module, kind):
                return self._add(make(module, args[0]), args[0])
        return self._refuse(type(module).__name__, target)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A function of entries; of anything else as it is."""
        return self._call(target, getattr(target, "__name__", str(target)), args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A method of an entry."""
        if isinstance(args[0], Entry) and target in ("size", "dim"):
            return getattr(args[0].box.center, target)(*args[1:], **kwargs)
        return self._call(getattr(torch.Tensor, target), target, args, kwargs)

    def _call(self, target: Any, name: str, args: Any, kwargs: Any) -> Any:
        flat = [*args, *kwargs.values()]
        if args and isinstance(args[0], (tuple, list)):
            flat += args[0]
        if not any(isinstance(value, Entry) for value in flat):
            return target(*args, **kwargs)
        if target is getattr and args[1] == "shape":
            return args[0].box.center.shape
        make = _FUNCTIONS.get(name)
        if make is None:
            return self._refuse(name, "a function")
        made = make(*args, **kwargs)
        return self._refuse(name, "with these arguments") if made is None else self._add(*made)

    def _add(self, layer: Layer | None, *parents: Entry) -> Entry:
        if layer is None:
            return parents[0]
        boxes = [parent.box for parent in parents]
        entry = Entry(layer, parents, layer.box(self.margin, *boxes))
        self.entries.append(entry)
        return entry

    def _refuse(self, name: str, where: str) -> Any:
        raise UnsupportedLayerError(
            f"no bounds for layer {name} ({where}); there are bounds for linear layers, "
            "convolutions, batch norm, ReLU, average and max pooling, flattening, addition and "
            "multiplication by constants"
        )


def _reshape(entry: Entry, make: Callable[[Tensor], Tensor]) -> Reshape:
    shape = entry.shape
    return Reshape(make, lambda a: a.reshape(len(a), *shape))


def _flatten(entry: Entry, start: int = 0, end: int = -1) -> tuple[Layer, Entry] | None:
    if start < 1:
        return None  # would mix the batch
    return _reshape(entry, lambda x: x.flatten(start, end)), entry


def _view(entry: Entry, *shape: Any) -> tuple[Layer, Entry] | None:
    wanted = tuple(shape[0]) if isinstance(shape[0], (tuple, list)) else shape
    count = len(entry.box.center)
    size = entry.box.center.reshape(wanted).shape
    if size[0] != count:
        return None
    return _reshape(entry, lambda x: x.reshape(len(x), *size[1:])), entry


def _dropout(module: nn.Dropout, entry: Entry) -> None:
    del entry
    if module.training:
        raise UnsupportedLayerError("no bounds for dropout in training mode; call eval()")


def _conv(module: nn.Conv2d, entry: Entry) -> Layer:
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise UnsupportedLayerError(
            f"no bounds for a convolution with padding {module.padding!r} ({module.padding_mode})"
        )
    return layers.convolution(module, entry.shape)


def _max_pool(
    entry: Entry,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    **_: Any,
) -> tuple[Layer, Entry] | None:
    if ceil_mode or _pair(dilation) != (1, 1):
        return None
    kernel, pad = _pair(kernel_size), _pair(padding)
    step = _pair(stride or kernel_size)
    return MaxPool(kernel, step, pad), entry


def _avg_pool(
    entry: Entry, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **more: Any
) -> tuple[Layer, Entry]:
    def pool(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, kernel_size, stride, padding, *rest, **more)

    return layers.average(pool, entry.shape, math.prod(_pair(kernel_size))), entry


def _adaptive(entry: Entry, output_size: Any) -> tuple[Layer, Entry]:
    def pool(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, output_size)

    return layers.average(pool, entry.shape, math.prod(entry.shape[1:])), entry


def _constant(value: Any, entry: Entry) -> Tensor | None:
    """A constant as a tensor that broadcasts to one row of an entry; None if it is none."""
    if isinstance(value, (int, float)):
        return torch.as_tensor(value, dtype=entry.box.center.dtype, device=entry.box.center.device)
    if isinstance(value, Tensor) and not value.requires_grad | isinstance(value, nn.Parameter):
        rows = value.dim() == len(entry.shape) + 1
        return value.detach().squeeze(0) if rows and len(value) == 1 else value.detach()
    return value.detach() if isinstance(value, Tensor) else None


def _add(first: Any, second: Any) -> tuple[Any, ...] | None:
    if isinstance(first, Entry) and isinstance(second, Entry):
        return (Add(), first, second) if first.shape == second.shape else None
    entry, value = (first, second) if isinstance(first, Entry) else (second, first)
    shift = _constant(value, entry)
    return None if shift is None else (layers.scale(torch.ones_like(shift), shift), entry)


def _sub(first: Any, second: Any) -> tuple[Any, ...] | None:
    if not isinstance(first, Entry):
        return None
    shift = _constant(second, first)
    return None if shift is None else (layers.scale(torch.ones_like(shift), -shift), first)


def _mul(first: Any, second: Any) -> tuple[Any, ...] | None:
    entry, value = (first, second) if isinstance(first, Entry) else (second, first)
    factor = _constant(value, entry)
    return None if factor is None else (layers.scale(factor), entry)


def _div(first: Any, second: Any) -> tuple[Any, ...] | None:
    factor = _constant(second, first) if isinstance(first, Entry) else None
    return None if factor is None else (layers.scale(1 / factor), first)


def _cat(parts: Any, dim: int = 0) -> tuple[Any, ...] | None:
    if len(parts) != 2 or dim != 1 or not all(isinstance(part, Entry) for part in parts):
        return None
    return Concat(parts[0].shape[0]), *parts


_MODULES: dict[Any, Callable[[Any, Entry], Layer | None]] = {
    nn.Linear: lambda module, _: layers.linear(module),
    nn.Conv2d: _conv,
    (nn.BatchNorm1d, nn.BatchNorm2d): lambda m, e: layers.batch_norm(m, e.box.center.dim()),
    nn.ReLU: lambda *_: Relu(),
    nn.MaxPool2d: lambda m, e: _taken(
        _max_pool(e, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode), "MaxPool2d"
    ),
    nn.AvgPool2d: lambda m, e: _avg_pool(
        e, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override
    )[0],
    nn.AdaptiveAvgPool2d: lambda m, e: _adaptive(e, m.output_size)[0],
    nn.Flatten: lambda m, e: _taken(_flatten(e, m.start_dim, m.end_dim), "Flatten"),
    nn.Identity: lambda *_: None,
    (nn.Dropout, nn.Dropout2d): _dropout,
}


def _taken(made: tuple[Layer, Entry] | None, name: str) -> Layer:
    if made is None:
        raise UnsupportedLayerError(f"no bounds for layer {name} with its settings")
    return made[0]


_FUNCTIONS: dict[str, Callable[..., tuple[Any, ...] | None]] = {
    "relu": lambda entry, inplace=False: (Relu(), entry),  # noqa: ARG005
    "relu_": lambda entry: (Relu(), entry),
    "flatten": _flatten,
    "view": _view,
    "reshape": _view,
    "max_pool2d": _max_pool,
    "boolean_dispatch": _max_pool,  # how F.max_pool2d is called
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool2d": _adaptive,
    "add": _add,
    "iadd": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "truediv": _div,
    "cat": _cat,
}
