"""What the processes that train together exchange, if there are several (`torchrun`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cpr_wrap.engine import ranks


def total(values: Tensor) -> Tensor:
    """Sum of a tensor over all processes, in place."""
    if ranks.together():
        dist.all_reduce(values)
    return values


def follow_leader(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of the first process."""
    if ranks.together():
        _in_one(tensors, lambda flat: dist.broadcast(flat, 0))


def sum_gradients(network: nn.Module) -> None:
    """Sum the gradients of a network's parameters over all processes, in one exchange.

    A parameter that no process has a gradient of stays without one. Not torch's
    DistributedDataParallel: its threads outlive the group and can abort the process at exit.
    """
    if not ranks.together():
        return
    learned = [p for p in network.parameters() if p.requires_grad]
    found = learned[0].new_tensor([float(p.grad is not None) for p in learned])
    for p in learned:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    _in_one([found, *(p.grad for p in learned if p.grad is not None)], total)
    for p, count in zip(learned, found.tolist(), strict=True):
        p.grad = p.grad if count else None


def share(batch: Tensor, rank: int, world: int) -> tuple[Tensor, float]:
    """The images `(M,)` of a batch `(N,)` that the process `rank` of `world` has, and their weight.

    Shares begin at even places, because CCAT and RCD give every second image another role:
    an image keeps its role whatever the number of processes. They are made of whole pairs, the
    odd image going with the last of them: batch norm cannot work on a share of one image. A process
    for which nothing is left gets two images that weigh nothing.
    """
    pairs = len(batch) // 2
    first, last = (-(-pairs * each // world) for each in (rank, rank + 1))
    begin = 2 * first if first < pairs or rank == 0 else len(batch)
    own = batch[begin : 2 * last if last < pairs else len(batch)]
    return (own, 1.0) if len(own) else (batch[:2], 0.0)


def _in_one(tensors: Iterable[Tensor], exchange: Callable[[Tensor], object]) -> None:
    """Exchange tensors in place, all those of one type and device joined to one."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for alike in groups.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        exchange(flat)
        parts = flat.split([tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or the best there is; under `torchrun` each process its own GPU."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
