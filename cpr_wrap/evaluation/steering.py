"""How the network is run while searching. What a search finds is judged by the model itself."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cpr_wrap.selective import SelectiveClassifier

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Steering:
    """Cheaper arithmetic for searches.

    Attributes:
        dtype: `bf16` or `fp16` for autocast, None for the model's own precision.
        compile: Run a compiled copy of the network.
        channels_last: Run a copy of the network in the channels-last memory format.
    """

    dtype: str | None = None
    compile: bool = False
    channels_last: bool = False

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

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context to search in."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=_DTYPES[self.dtype])
