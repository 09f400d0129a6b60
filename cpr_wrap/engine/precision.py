"""How the network is run while searching, and how many rows fit into a batch.

What a search finds is judged by the model itself.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
                import torch._functorch.config as config

                # Since 2.6, torch reuses a graph's buffers in its first backward and refuses a
                # second one at the same point, as T and objectives need it.
                if hasattr(config, "donated_buffer"):
                    stack.enter_context(config.patch(donated_buffer=False))
            yield


# Larger batches gain nothing on a CPU, and little on a GPU beyond this.
_MOST = {"cpu": 256}
_MOST_ELSEWHERE = 2048
_SHARE = 0.4  # of the free memory; a search holds several tensors beside the graph


# Only GPUs have an exception of their own; elsewhere torch raises a RuntimeError that says so.
_COMPLAINTS = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")


NO_ROOM = (
    "out of memory with a batch of a single image; use a smaller network or a device with more "
    "memory"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error would not have come with a smaller batch."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _COMPLAINTS)


def graph_bytes(model: SelectiveClassifier, x: Tensor) -> int:
    """Memory that the graph of one forward at `x` `(1, ...)` keeps alive, in bytes."""
    kept: dict[int, int] = {}
    parameters = {p.data_ptr() for p in model.base.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model.outputs(x.detach().requires_grad_())
    del outputs
    return sum(kept.values()) + 8 * x.numel() * x.element_size()


def free_bytes(device: torch.device) -> int:
    """Free memory of a device, in bytes."""
    if device.type == "cuda":
        # What torch keeps for later use is free too, or a second run would find less than a first.
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not every system tells
        return 2 * 2**30


def auto_batch_size(model: SelectiveClassifier, x: Tensor) -> int:
    """The largest sensible power of two, for images like `x` `(1, ...)` on the model's device."""
    # Two graphs at once: objectives that read T(z) differentiate at z and at T(z).
    fits = _SHARE * free_bytes(x.device) / (2 * graph_bytes(model, x))
    if x.device.type == "cpu":
        fits /= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's; all share this memory
    most = _MOST.get(x.device.type, _MOST_ELSEWHERE)
    return int(2 ** (max(1, min(most, int(fits))).bit_length() - 1))
