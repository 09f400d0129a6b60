"""The processes that `torchrun` starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def several_processes(device: torch.device) -> Iterator[bool]:
    """Join the processes of this command, if there are several, and part from them at the end.

    Yields:
        Whether this is the process that prints and writes.
    """
    import torch.distributed as dist

    from cpr_wrap.training.distributed import join_group

    joined_before = dist.is_available() and dist.is_initialized()
    group = join_group(device)
    try:
        yield group.leads
    finally:
        if group.world > 1 and not joined_before:
            dist.destroy_process_group()
