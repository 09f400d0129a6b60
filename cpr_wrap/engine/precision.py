"""How the network is run while searching. What a search finds is judged by the model itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cpr_wrap.selective import SelectiveClassifier

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Cheaper arithmetic for searches."""

    dtype: str | None = None  #: `bf16` or `fp16` for autocast, None for the model's own precision.
    compile: bool = False  #: Run a compiled copy of the network.
    channels_last: bool = False  #: Run a copy of the network in the channels-last memory format.

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in _DTYPES:
            raise ValueError(f"dtype: expected bf16, fp16 or None, got {self.dtype!r}")

    def model(self, model: SelectiveClassifier) -> SelectiveClassifier:
        """The classifier to search with; the one given is left as it is."""
        if not (self.compile or self.channels_last):
            return model
        base: nn.Module = copy.deepcopy(model.base)
        if self.channels_last:
            base = base.to(memory_format=torch.channels_last)
        if self.compile:
            base.compile()
        return SelectiveClassifier(base, model.rule, model.source)

    @property
    def exact(self) -> bool:
        """Whether a search sees what the judge will see, but for rounding in the last digits."""
        return self.dtype is None

    @contextmanager
    def context(self, device: torch.device) -> Iterator[None]:
        """The context to search in."""
        with ExitStack() as stack:
            if self.dtype is not None:
                stack.enter_context(torch.autocast(device.type, dtype=_DTYPES[self.dtype]))
            if self.compile:
                stack.enter_context(_graphs_used_twice())
            yield


def _graphs_used_twice() -> AbstractContextManager[Any]:
    """Let compiled networks be differentiated twice at one point, as T and objectives need it.

    Since 2.6, torch reuses a graph's buffers in its first backward and refuses a second one.
    """
    import torch._functorch.config as config

    if not hasattr(config, "donated_buffer"):
        return nullcontext()
    change: AbstractContextManager[Any] = config.patch(donated_buffer=False)
    return change
