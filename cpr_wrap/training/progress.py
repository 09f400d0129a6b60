"""What a person watching a training sees."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cpr_wrap._text import percent
from cpr_wrap.training.history import EpochRecord, Tally


class TrainingProgress(Progress):
    """A live line with the current epoch, and one line that stays for each finished epoch."""

    def __init__(self, epochs: int, images: int, seen: int, *, show: bool) -> None:
        """Prepare the display.

        Args:
            epochs: Epochs in all.
            images: Images per epoch.
            seen: Images seen before this run began.
            show: Whether to show anything.
        """
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True, quiet=not show),
            disable=not show,
        )
        self._epochs = epochs
        self._task = self.add_task("", total=epochs * images, completed=seen, state="")

    def step(self, epoch: int, images: int, tally: Tally) -> None:
        """Show a step: `images` more seen, and the epoch's running means."""
        speed = self.tasks[0].speed
        self.update(
            self._task,
            advance=images,
            description=f"epoch {epoch + 1}/{self._epochs}",
            state=f"loss {tally.loss:.3f}  clean {percent(tally.clean)} "
            f"adversarial {percent(tally.adversarial)} {speed or 0:.0f} images/s",
        )

    def close_epoch(self, record: EpochRecord) -> None:
        """Print a line about an epoch that stays."""
        clean, adversarial, held_out, robust = map(
            percent,
            (record.clean, record.adversarial, record.validation_clean, record.validation_robust),
        )
        self.console.print(
            f"epoch {record.epoch + 1}/{self._epochs}: loss {record.loss:.4f}, training clean "
            f"{clean}, adversarial {adversarial}; validation clean {held_out}, PGD {robust}; "
            f"{record.seconds:.0f} s",
            highlight=False,
        )
