"""Exact forward, smoothed backward: gradients for searches where a network's own are zero.

A ReLU below its threshold, a clamp beyond its bounds and the smaller inputs of a max-pooling have
zero gradient, although a longer step would change the output. Inside `smoothed`, every such
function keeps its exact value, but its backward is that of a smooth approximation. The network is
not changed. Only searches use it: judging, and what a rule computes for its verdict, run outside
the block or under `exact`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import Self

from cpr_wrap._soft import REPLACEMENTS

STRENGTH = 0.15
"""Width of the smoothing, as a share of the spread of a function's inputs."""

_entered = 0
_switched_off = 0


def active() -> bool:
    """Whether gradients of what is computed now would be smoothed."""
    return _entered > 0 and not _switched_off


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
    global _switched_off
    _switched_off += 1
    try:
        yield
    finally:
        _switched_off -= 1


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
        global _entered
        _entered += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        global _entered
        _entered -= 1
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
        replacement = REPLACEMENTS.get(func)
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
    if _switched_off or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        return False
    return bool(args[0].dim() > 1 and args[0].is_floating_point())
