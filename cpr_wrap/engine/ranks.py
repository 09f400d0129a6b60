"""Several processes, one evaluation: who does which block, and how results come together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

from cpr_wrap._processes import (
    explain_silence,
    leave,
    patient_group,
    rank,
    together,
    world_size,
)

__all__ = ["explain_failure", "gather", "least", "leave", "rank", "turns", "world_size"]

T = TypeVar("T")


_round = 0


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
    with explain_silence():
        dist.all_gather_object(parts, mine, group=patient_group())
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
