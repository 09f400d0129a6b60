"""What a training measures: epoch by epoch, for a person watching, and quick accuracies.

Not an evaluation: that is `cpr_wrap.evaluation`, which attacks the rejection rule as well. All
networks may have more outputs than classes; further columns are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap._text import percent
from cpr_wrap.geometry import wide
from cpr_wrap.objective import margin
from cpr_wrap.training.method import Losses, attacking
from cpr_wrap.training.methods import AT

_AT_A_TIME = 250


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What was measured in one epoch."""

    epoch: int  #: Number of the epoch, from 0.
    loss: float  #: Mean loss of the images as they were learned from.
    #: Share classified rightly of those shown unchanged, None if there were none.
    clean: float | None
    adversarial: float | None  #: The same of those shown attacked.
    #: Accuracy on the validation images after the epoch, None without any.
    validation_clean: float | None = None
    validation_robust: float | None = None  #: The same under PGD.
    seconds: float  #: How long the epoch took, validation included.


def step_sums(losses: Losses) -> Tensor:
    """The sums of a step `(6,)`, on the losses' device.

    Loss and images; right and all of those shown unchanged; right and all of the attacked.
    """
    rows = losses.rows.detach()
    sums = []
    for part in (rows, losses.clean, losses.adversarial):
        values = (rows[:0] if part is None else part).to(wide(rows))
        sums += [values.sum(), torch.ones_like(values).sum()]
    return torch.stack(sums)


class TrainingProgress(Progress):
    """A live line with the current epoch, and one line that stays for each finished epoch."""

    def __init__(self, epochs: int, images: int, seen: int, *, show: bool) -> None:
        """Prepare the display of `epochs` of `images` each, of which `seen` were seen before."""
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

    def step(self, images: int, record: EpochRecord) -> None:
        """Show a step: `images` more seen, and the epoch so far."""
        speed = self.tasks[0].speed
        self.update(
            self._task,
            advance=images,
            description=f"epoch {record.epoch + 1}/{self._epochs}",
            state=f"loss {record.loss:.3f}  clean {percent(record.clean)} "
            f"adversarial {percent(record.adversarial)} {speed or 0:.0f} images/s",
        )

    def close_epoch(self, record: EpochRecord) -> None:
        """Print a line about an epoch that stays."""
        self.console.print(
            f"epoch {record.epoch + 1}/{self._epochs}: loss {record.loss:.4f}, "
            f"training clean {percent(record.clean)}, adversarial {percent(record.adversarial)}; "
            f"validation clean {percent(record.validation_clean)}, "
            f"PGD {percent(record.validation_robust)}; {record.seconds:.0f} s",
            highlight=False,
        )


def clean_accuracy(network: nn.Module, x: Tensor, y: Tensor, num_classes: int) -> float:
    """Share of images `(N, C, H, W)` whose largest class logit is the true one `(N,)`."""
    hits = 0
    with attacking(network), torch.no_grad():
        for part, labels in zip(x.split(_AT_A_TIME), y.split(_AT_A_TIME), strict=True):
            hits += int((network(part)[:, :num_classes].argmax(dim=1) == labels).sum())
    return hits / len(y)


def pgd_points(
    network: nn.Module, x: Tensor, y: Tensor, num_classes: int, *, seed: int = 0, **settings: Any
) -> Tensor:
    """The points of the smallest margin around images `(N, C, H, W)` that PGD finds.

    `settings` are those of `AT`; the attack starts anywhere within its `eps`.
    """
    attack = AT(**settings, keep="best").attack

    def points(x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        return attack(network, lambda z: -margin(network(z)[:, :num_classes], y), x, keys)

    keys = noise.keys(seed, torch.arange(len(y), device=x.device))
    return torch.cat([*map(points, *(rows.split(_AT_A_TIME) for rows in (x, y, keys)))])


def pgd_accuracy(
    network: nn.Module, x: Tensor, y: Tensor, num_classes: int, eps: float, **settings: Any
) -> float:
    """Share of images still classified rightly at the points that `pgd_points` finds."""
    points = pgd_points(network, x, y, num_classes, eps=eps, **settings)
    return clean_accuracy(network, points, y, num_classes)
