"""Several processes that work together: who does what, how they wait, and how they part."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

if dist.is_available():
    # Its functions have the default group as a default argument. Imported while there is a group
    # (an optimizer imports it), they keep the group and its threads alive to the very end, where a
    # thread that still holds a tensor aborts the process.
    import torch.distributed.nn

# torchrun ends all processes when one dies, so a silent one is slow; ranks may end hours apart.
_PATIENCE_TORCHRUN = timedelta(days=30)
_PATIENCE = timedelta(hours=1)
# Weak, so as not to keep the group alive either.
_patient: tuple[weakref.ref[Any], weakref.ref[Any]] | None = None
_round = 0  # how often pieces of work were shared out


def together() -> bool:
    """Whether this process is one of a group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number, 0 when alone."""
    return dist.get_rank() if together() else 0


def world_size() -> int:
    """How many processes work together, 1 when alone."""
    return dist.get_world_size() if together() else 1


def join(device: torch.device) -> None:
    """Join the processes that `torchrun` started, if there are any and we have not yet.

    A process that does not call `leave` leaves when the interpreter exits.
    """
    if not dist.is_available() or together() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    atexit.register(leave, wait=False)


def leave(*, wait: bool = True) -> None:
    """Leave the group, so that the interpreter can exit; does nothing when alone.

    Call it on every rank, when everything is written; after a failure with `wait=False`.
    """
    if not together():
        return
    try:
        if wait:
            barrier()
    finally:
        dist.destroy_process_group()


def barrier() -> None:
    """Wait until all processes have come here."""
    gather({})


def patient_group() -> Any:
    """All ranks on the CPU, with time for ranks that end long after others."""
    global _patient
    world = dist.group.WORLD
    known, group = (None, None) if _patient is None else (reference() for reference in _patient)
    if group is None or known is not world:
        patience = _PATIENCE_TORCHRUN if dist.is_torchelastic_launched() else _PATIENCE
        group = dist.new_group(backend="gloo", timeout=patience)
        _patient = (weakref.ref(world), weakref.ref(group))
    return group


def turns(count: int) -> Iterator[int]:
    """This process's share of `count` pieces of work, in ascending order.

    Every process takes the next piece that nobody has, so that none is idle while another has
    pieces to do. All processes must ask equally often.
    """
    global _round
    if not together():
        yield from range(count)
        return
    _round += 1
    counter = dist.distributed_c10d._get_default_store()
    while (number := counter.add(f"cpr_wrap/turn/{_round}", 1) - 1) < count:
        yield number


def least(value: int) -> int:
    """The smallest of the values that ranks come with."""
    return min(gather({rank(): value}).values())


def gather(mine: dict[int, T]) -> dict[int, T]:
    """Merge what all ranks have, on every rank."""
    if not together():
        return mine
    parts: list[dict[int, T] | None] = [None] * world_size()
    try:
        dist.all_gather_object(parts, mine, group=patient_group())
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RuntimeError(
            f"rank {rank()} of {world_size()} got no answer from the other processes ({reason}). "
            f"Without torchrun a process waits {_PATIENCE} at most. Finished work is on disk, if a "
            "folder for it was given; run the same command again"
        ) from error
    return {key: value for part in parts if part is not None for key, value in part.items()}


@contextmanager
def explain_failure(block: int) -> Iterator[None]:
    """Say which rank and block failed, and that finished work is kept."""
    try:
        yield
    except Exception as error:
        if world_size() > 1:
            raise RuntimeError(
                f"rank {rank()} of {world_size()} failed on block {block}: {error}. Finished work "
                "is in the store, if one was given; run the same command again, with any number "
                "of ranks"
            ) from error
        raise
