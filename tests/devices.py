"""A guard that lets no tensor be made on a device that nobody named.

On a machine with one device, a forgotten `device=` goes unnoticed. Under `only_on(device)` every
call that makes a tensor from nothing has to name that device. Run code under
`only_on("meta")` with meta tensors to see that it follows its inputs to any device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

FACTORIES = frozenset(
    {
        torch.arange,
        torch.as_tensor,
        torch.asarray,
        torch.empty,
        torch.eye,
        torch.from_numpy,
        torch.full,
        torch.linspace,
        torch.logspace,
        torch.normal,
        torch.ones,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch.scalar_tensor,
        torch.tensor,
        torch.tril_indices,
        torch.triu_indices,
        torch.zeros,
    }
)
# These take an input's device unless another one is named.
FOLLOWERS = frozenset(
    {
        torch.empty_like,
        torch.full_like,
        torch.ones_like,
        torch.rand_like,
        torch.randn_like,
        torch.zeros_like,
        torch.Tensor.new_empty,
        torch.Tensor.new_full,
        torch.Tensor.new_ones,
        torch.Tensor.new_tensor,
        torch.Tensor.new_zeros,
    }
)
MOVERS = frozenset({torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.numpy})


class WrongDeviceError(AssertionError):
    """A tensor was made on a device that is not the inputs'."""


class _OnlyOn(TorchFunctionMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        named = kwargs.get("device")
        if func in FACTORIES and named is None:
            raise WrongDeviceError(f"{name} without device=; make tensors on their inputs' device")
        if func in FACTORIES | FOLLOWERS and named is not None:
            self._expect(name, torch.device(named))
        if func in MOVERS:
            raise WrongDeviceError(f"{name} moves a tensor off its device")
        result = func(*args, **kwargs)
        if func is torch.Tensor.to and isinstance(result, torch.Tensor):
            self._expect(name, result.device)
        return result

    def _expect(self, name: str, device: torch.device) -> None:
        if device.type != self.device.type:
            raise WrongDeviceError(f"{name} on {device}, but the inputs are on {self.device}")


@contextmanager
def only_on(device: str | torch.device) -> Iterator[None]:
    """Refuse tensors made on no named device, or on another one than `device`."""
    with _OnlyOn(torch.device(device)):
        yield
