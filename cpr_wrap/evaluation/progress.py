"""Tells how far an evaluation is, to a function or as a bar in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from cpr_wrap.evaluation import ranks
from cpr_wrap.evaluation.block import Block
from cpr_wrap.meter import Passes
from cpr_wrap.objective import Goal


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where an evaluation stands.

    Attributes:
        images_done: Images finished.
        images: Images in all.
        attack: The stage that has just ended.
        fraction: Share of the work units done.
        passes: Sample-passes so far.
        seconds: Time so far.
        error_at_0: Robust error at alpha = 0 among the images seen so far.
        error_at_1: The same at alpha = 1.
    """

    images_done: int
    images: int
    attack: str
    fraction: float
    passes: int
    seconds: float
    error_at_0: float
    error_at_1: float

    @property
    def seconds_left(self) -> float:
        """An estimate from the share done."""
        return self.seconds * (1 - self.fraction) / max(self.fraction, 1e-9)


class Progress:
    """Collects what the blocks report and passes it on. With several ranks, rank 0 speaks."""

    def __init__(self, tell: Callable[[Status], None] | None, images: int, stages: int) -> None:
        self.tell = tell if ranks.rank() == 0 else None
        self.images, self.stages = images, stages
        self.started = time.perf_counter()
        self.passes = self.done = 0
        self.work = 0.0
        self.errors = [0, 0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def listen(self, block: Block, stage: str, passes: Passes) -> None:
        """Hear of a finished unit."""
        self.passes += passes.total
        self.work += len(block) / self.stages
        if self.tell is None:
            return
        at_0, at_1 = _errors(block)
        seen = self.done + len(block)
        everyone = ranks.world_size()
        self.tell(
            Status(
                images_done=min(self.images, self.done * everyone),
                images=self.images,
                attack=stage,
                fraction=min(1.0, self.work * everyone / self.images),
                passes=self.passes * everyone,
                seconds=time.perf_counter() - self.started,
                error_at_0=(self.errors[0] + at_0) / seen,
                error_at_1=(self.errors[1] + at_1) / seen,
            )
        )

    def block_done(self, block: Block) -> None:
        """Hear that a block is finished."""
        at_0, at_1 = _errors(block)
        self.errors = [self.errors[0] + at_0, self.errors[1] + at_1]
        self.done += len(block)


class _Bar(Progress):
    """A bar in the terminal, on standard error so that results can be piped."""

    def __init__(self, images: int, stages: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=ranks.rank() != 0,
        )
        self.task: Any = self.bar.add_task("starting", total=1.0)
        super().__init__(self._show, images, stages)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def _show(self, status: Status) -> None:
        speed = status.passes / max(status.seconds, 1e-9)
        text = (
            f"{status.images_done}/{status.images} images, {status.attack}, robust error "
            f"{status.error_at_0:.1%} to {status.error_at_1:.1%}, {speed:,.0f} passes/s"
        )
        self.bar.update(self.task, completed=status.fraction, description=text)


def _errors(block: Block) -> tuple[int, int]:
    broken = block.found[Goal.ACCEPTED_MISTAKE].known
    rejected = block.found[Goal.REJECTED]
    at_0 = int((broken | (rejected.distance == 0)).sum())
    return at_0, int((broken | rejected.known).sum())


def progress_from(
    wish: bool | Callable[[Status], None] | None, images: int, stages: int
) -> Progress:
    """A reporter for what the caller asked for: True, a function, or nothing."""
    if wish is True:
        return _Bar(images, stages)
    return Progress(wish or None, images, stages)
