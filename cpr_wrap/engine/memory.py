"""How many rows fit into a batch."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from cpr_wrap.selective import SelectiveClassifier

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

    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
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
