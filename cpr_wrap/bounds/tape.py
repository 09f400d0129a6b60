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
    """The network has a layer without bounds."""


@dataclass(eq=False)
class Entry:
    """A layer (None for the input), the entries that it reads, and the box of its outputs."""

    layer: Layer | None
    parents: tuple[Entry, ...]
    box: Box  # CROWN replaces it by a tighter one

    @property
    def shape(self) -> torch.Size:
        """Shape of one output."""
        return self.box.shape


def record(network: nn.Module, box: Box, margin: float) -> list[Entry]:
    """Run a box through a network to outputs `(N, k)`: an entry per layer, the input first.

    `margin` is how many rounding margins each layer adds; 0 for none.
    """
    for name, module in network.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise UnsupportedLayerError(
                f"no bounds for {type(module).__name__} ({name}): it has hooks, which may change "
                "what it computes; remove them"
            )
    shell, graph, fresh = _traced(network)
    if fresh and not (network.training or box.center.is_meta):
        _compare(network, _run(shell, graph, Box(box.center, box.radius * 0), 1.0))
    return _run(shell, graph, box, margin)


def _run(shell: nn.Module, graph: fx.Graph, box: Box, margin: float) -> list[Entry]:
    reader = _Reader(shell, graph, margin)
    try:
        last = reader.run(Entry(None, (), box))
    except UnsupportedLayerError as error:
        # The interpreter adds where it was in the graph, over many lines.
        raise UnsupportedLayerError(str(error).partition("\n")[0]) from None
    if not isinstance(last, Entry):
        raise UnsupportedLayerError(f"no bounds for a network that returns {type(last).__name__}")
    return reader.entries[: reader.entries.index(last) + 1]


def _compare(network: nn.Module, entries: list[Entry]) -> None:
    """Refuse a network that does not compute what torch.fx reads, e.g. where it writes in place."""
    with torch.no_grad():
        out, box = network(entries[0].box.center.clone()), entries[-1].box
    if out.shape != box.center.shape or bool(((out < box.low) | (out > box.high)).any()):
        _TRACES.pop(network)
        raise UnsupportedLayerError(
            f"no bounds for {type(network).__name__}: it does not compute what torch.fx reads in "
            "its forward; an operation in place on what is read again would do that"
        )


_TRACES: WeakKeyDictionary[nn.Module, tuple[Any, nn.Module, fx.Graph]] = WeakKeyDictionary()


def _traced(network: nn.Module) -> tuple[nn.Module, fx.Graph, bool]:
    """A shell and the graph to run on it, and whether it is new.

    Layers and weights are read when it runs. Tracing writes constants to the module that it is
    given, so it is given a shallow copy.
    """
    # What a forward may branch on or read as a number; the rest is looked up when it runs.
    plain = (bool, int, float, str, tuple)
    own, *others = (
        (module, [v if isinstance(v, plain) else id(v) for v in vars(module).values()])
        for module in network.modules()
    )
    key = [own[1], *others]  # the network itself is only held weakly
    known = _TRACES.get(network)
    if known is not None and known[0] == key:
        return known[1], known[2], False
    shell = copy(network)
    try:
        graph = fx.Tracer().trace(shell)
    except Exception as error:
        raise UnsupportedLayerError(
            f"no bounds for {type(network).__name__}: torch.fx cannot read its forward ({error})"
        ) from error
    _TRACES[network] = key, shell, graph
    return shell, graph, True


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
        module = self.fetch_attr(target)
        name = type(module).__name__
        for kind, make in _MODULES.items():
            # A subclass may compute something else.
            if isinstance(module, kind) and type(module).forward is kind.forward and not kwargs:
                if module.training and self.margin and isinstance(module, _MODAL):
                    raise UnsupportedLayerError(
                        f"no bounds for layer {name} ({target}) in training mode; call eval()"
                    )
                return self._made(make(module, args[0]), f"{name} ({target})")
        return self._refuse(f"{name} ({target})")

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
            return self._refuse(name)
        try:
            made = make(*args, **kwargs)
        except TypeError:  # arguments that it does not know
            made = None
        return self._made(made, name)

    def _made(self, made: tuple[Any, ...] | None, name: str) -> Any:
        if made is None:
            return self._refuse(f"{name} with its settings")
        layer, *parents = made
        if layer is None:
            return parents[0]
        boxes = [parent.box for parent in parents]
        self.entries.append(Entry(layer, tuple(parents), layer.box(self.margin, *boxes)))
        return self.entries[-1]

    def _refuse(self, name: str) -> Any:
        raise UnsupportedLayerError(
            f"no bounds for layer {name}; there are bounds for linear layers, convolutions, batch "
            "norm, ReLU, average and max pooling, flattening, addition and multiplication by "
            "constants"
        )


Made = tuple[Any, ...] | None
"""A layer, None if it changes nothing, and the entries it reads; or None for a refusal."""


def _flatten(entry: Entry, start_dim: int = 0, end_dim: int = -1) -> Made:
    if start_dim < 1:
        return None  # would mix the batch
    return Reshape(lambda x: x.flatten(start_dim, end_dim)), entry


def _view(entry: Entry, *shape: Any) -> Made:
    wanted = tuple(shape[0]) if isinstance(shape[0], (tuple, list)) else shape
    size = entry.box.center.reshape(wanted).shape
    if size[0] != len(entry.box.center):
        return None
    return Reshape(lambda x: x.reshape(len(x), *size[1:])), entry


def _conv(module: nn.Conv2d, entry: Entry) -> Made:
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise UnsupportedLayerError(
            f"no bounds for a convolution with padding {module.padding!r} ({module.padding_mode})"
        )
    return layers.convolution(module, entry.shape), entry


def _max_pool(
    entry: Entry,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Made:
    if ceil_mode or return_indices or _pair(dilation) != (1, 1):
        return None
    return MaxPool(_pair(kernel_size), _pair(stride or kernel_size), _pair(padding)), entry


def _avg_pool(
    entry: Entry, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **more: Any
) -> Made:
    def pool(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, kernel_size, stride, padding, *rest, **more)

    return layers.average(pool, entry.shape, math.prod(_pair(kernel_size))), entry


def _adaptive(entry: Entry, output_size: Any) -> Made:
    def pool(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, output_size)

    return layers.average(pool, entry.shape, math.prod(entry.shape[1:])), entry


def _constant(value: Any, entry: Entry) -> Tensor | None:
    """A constant as a tensor that broadcasts to one row of an entry; None if it does not."""
    if isinstance(value, Entry):
        return None
    made = torch.as_tensor(value, dtype=entry.box.center.dtype, device=entry.box.center.device)
    if made.dim() == len(entry.shape) + 1 and len(made) == 1:
        made = made[0]
    wide = torch.broadcast_shapes(made.shape, (2, *entry.shape))
    fits = made.dim() <= len(entry.shape) and wide == (2, *entry.shape)
    return made.detach() if fits else None


def _add(first: Any, second: Any) -> Made:
    if isinstance(first, Entry) and isinstance(second, Entry):
        return (Add(), first, second) if first.shape == second.shape else None
    entry, value = (first, second) if isinstance(first, Entry) else (second, first)
    shift = _constant(value, entry)
    return None if shift is None else (layers.scale(torch.ones_like(shift), shift), entry)


def _sub(first: Any, second: Any) -> Made:
    shift = _constant(second, first) if isinstance(first, Entry) else None
    return None if shift is None else (layers.scale(torch.ones_like(shift), -shift), first)


def _mul(first: Any, second: Any) -> Made:
    entry, value = (first, second) if isinstance(first, Entry) else (second, first)
    factor = _constant(value, entry)
    return None if factor is None else (layers.scale(factor), entry)


def _div(first: Any, second: Any) -> Made:
    factor = _constant(second, first) if isinstance(first, Entry) else None
    return None if factor is None else (layers.scale(1 / factor), first)


def _cat(parts: Any, dim: int = 0) -> Made:
    if len(parts) != 2 or dim != 1 or not all(isinstance(part, Entry) for part in parts):
        return None
    return Concat(parts[0].shape[0]), *parts


_MODAL = (nn.Dropout, nn.Dropout2d, nn.BatchNorm1d, nn.BatchNorm2d)  # other in training mode

_MODULES: dict[type[nn.Module], Callable[[Any, Entry], Made]] = {
    nn.Linear: lambda m, e: (layers.linear(m), e),
    nn.Conv2d: _conv,
    nn.BatchNorm1d: lambda m, e: (layers.batch_norm(m, e.box.center.dim()), e),
    nn.BatchNorm2d: lambda m, e: (layers.batch_norm(m, e.box.center.dim()), e),
    nn.ReLU: lambda _, e: (Relu(), e),
    nn.MaxPool2d: lambda m, e: _max_pool(
        e, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices
    ),
    nn.AvgPool2d: lambda m, e: _avg_pool(
        e, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override
    ),
    nn.AdaptiveAvgPool2d: lambda m, e: _adaptive(e, m.output_size),
    nn.Flatten: lambda m, e: _flatten(e, m.start_dim, m.end_dim),
    nn.Identity: lambda _, e: (None, e),
    nn.Dropout: lambda _, e: (None, e),
    nn.Dropout2d: lambda _, e: (None, e),
}

_FUNCTIONS: dict[str, Callable[..., Made]] = {
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
