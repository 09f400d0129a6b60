"""The processes that train together, if there are several (`torchrun`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Group:
    """One of `world` processes that share every batch.

    Attributes:
        rank: This process's number.
        world: How many there are.
    """

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum of a tensor over all processes."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def leaders(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of the process that leads."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def rows(self, count: int) -> slice:
        """This process's share of a batch of `count` images.

        Shares begin at even places, because CCAT and RCD give every second image another role:
        an image keeps its role whatever the number of processes. They are made of whole pairs, the
        odd image going with the last of them: batch norm cannot work on a share of one image.
        """
        pairs = count // 2
        first, last = (-(-pairs * rank // self.world) for rank in (self.rank, self.rank + 1))
        begin = 2 * first if first < pairs or self.rank == 0 else count
        return slice(begin, 2 * last if last < pairs else count)


def join_group(device: torch.device) -> Group:
    """Join the processes that `torchrun` started, or stand alone."""
    if not dist.is_available():
        return Group()
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if not dist.is_initialized():
        return Group()
    return Group(rank=dist.get_rank(), world=dist.get_world_size())


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or the best there is; under `torchrun` each process its own GPU."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
