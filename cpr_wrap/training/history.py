"""What a training measured, epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cpr_wrap.training.method import Losses


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What was measured in one epoch.

    Attributes:
        epoch: Number of the epoch, from 0.
        loss: Mean loss of the images as they were learned from.
        clean: Share classified rightly of those shown unchanged, None if there were none.
        adversarial: The same of those shown attacked.
        validation_clean: Accuracy on the validation images after the epoch, None without any.
        validation_robust: The same under PGD.
        seconds: How long the epoch took, validation included.
    """

    epoch: int
    loss: float
    clean: float | None
    adversarial: float | None
    validation_clean: float | None
    validation_robust: float | None
    seconds: float


@dataclass
class Tally:
    """Sums over the steps of an epoch.

    Attributes:
        sums: Loss, images; right and all of those shown unchanged; right and all of the attacked.
        seconds: Time spent.
    """

    sums: list[float] = field(default_factory=lambda: [0.0] * 6)
    seconds: float = 0.0

    def add(self, step: Tensor) -> None:
        """Add the sums of one step `(6,)`."""
        self.sums = [a + b for a, b in zip(self.sums, step.tolist(), strict=True)]

    @property
    def loss(self) -> float:
        """Mean loss."""
        return self.sums[0] / max(self.sums[1], 1)

    @property
    def clean(self) -> float | None:
        """Accuracy on unchanged images."""
        return self.sums[2] / self.sums[3] if self.sums[3] else None

    @property
    def adversarial(self) -> float | None:
        """Accuracy on attacked images."""
        return self.sums[4] / self.sums[5] if self.sums[5] else None


def wide_float(device: torch.device) -> torch.dtype:
    """The widest float of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def step_sums(losses: Losses) -> Tensor:
    """The sums of a step `(6,)`, on the losses' device."""
    rows = losses.rows.detach()
    wide = wide_float(rows.device)
    sums = [rows.to(wide).sum(), torch.tensor(len(rows), dtype=wide, device=rows.device)]
    for hits in (losses.clean, losses.adversarial):
        hits = rows.new_zeros(0) if hits is None else hits
        sums += [hits.to(wide).sum(), torch.tensor(len(hits), dtype=wide, device=rows.device)]
    return torch.stack(sums)
