"""Several processes, one evaluation: who does which block, and how results come together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")

# Ranks may end hours apart, and a group's own patience is 10 minutes with nccl.
_PATIENCE = timedelta(days=30)
_patient: tuple[Any, Any] | None = None


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number, 0 when alone."""
    return dist.get_rank() if _together() else 0


def world_size() -> int:
    """How many processes work together, 1 when alone."""
    return dist.get_world_size() if _together() else 1


def _patient_group() -> Any:
    """All ranks on the CPU, where results are, whatever the model runs on."""
    global _patient
    world = dist.group.WORLD
    if _patient is None or _patient[0] is not world:
        _patient = (world, dist.new_group(backend="gloo", timeout=_PATIENCE))
    return _patient[1]


def least(value: int) -> int:
    """The smallest of the values that ranks come with."""
    return min(gather({rank(): value}).values())


def gather(mine: dict[int, T]) -> dict[int, T]:
    """Merge what all ranks have, on every rank."""
    if not _together():
        return mine
    parts: list[dict[int, T] | None] = [None] * world_size()
    dist.all_gather_object(parts, mine, group=_patient_group())
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
