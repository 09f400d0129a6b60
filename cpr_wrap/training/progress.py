"""What a person watching a training sees."""

from __future__ import annotations

import math
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typing_extensions import Self


def percent(share: float | None) -> str:
    """A share as text, a dash where there is none."""
    return "-" if share is None or math.isnan(share) else f"{100 * share:.1f} %"


class TrainingProgress:
    """A live line with the current epoch, and one line that stays for each finished epoch."""

    def __init__(self, epochs: int, images: int, seen: int, *, show: bool) -> None:
        """Prepare the display.

        Args:
            epochs: Epochs in all.
            images: Images an epoch.
            seen: Images seen before this run began.
            show: Whether to show anything.
        """
        self._console = Console(stderr=True, quiet=not show)
        self._epochs = epochs
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("loss {task.fields[loss]}  clean {task.fields[clean]}"),
            TextColumn("adversarial {task.fields[adversarial]}"),
            TextColumn("{task.fields[speed]} images/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not show,
        )
        self._task = self._progress.add_task(
            "",
            total=epochs * images,
            completed=seen,
            epoch="",
            loss="-",
            clean="-",
            adversarial="-",
            speed="-",
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def update(
        self,
        epoch: int,
        images: int,
        loss: float,
        clean: float | None,
        adversarial: float | None,
    ) -> None:
        """Show a step: `images` more seen, and the epoch's running means."""
        task = self._progress.tasks[0]
        self._progress.update(
            self._task,
            advance=images,
            epoch=f"{epoch + 1}/{self._epochs}",
            loss=f"{loss:.3f}",
            clean=percent(clean),
            adversarial=percent(adversarial),
            speed="-" if task.speed is None else f"{task.speed:.0f}",
        )

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False)
