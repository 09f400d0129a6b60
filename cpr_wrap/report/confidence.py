"""Intervals over images as tables and charts show them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cpr_wrap.metrics import Band, Interval, RobustnessCurve, bootstrap_band, clopper_pearson
from cpr_wrap.metrics.losses import LossLike

GRID = 101  # points of bands, theory and the read-out


def grid() -> Tensor:
    """The alphas `(101,)` at which bands are drawn and read."""
    return torch.linspace(0, 1, GRID, dtype=torch.float64)


def error_band(curve: RobustnessCurve, alphas: Tensor) -> Band:
    """Bootstrap intervals of the error at alphas `(M,)`, exact ones where all images agree.

    A bootstrap of images that all agree has no width, however few they are; the exact interval of
    a proportion is the honest one there.
    """
    band = curve.error_band(alphas)
    errors = curve.error_at(alphas)
    none, every = _agreed(len(curve.records))
    low = torch.where(errors == 1, every.low, band.low)
    high = torch.where(errors == 0, none.high, band.high)
    return Band(low=low, high=high, level=band.level, seed=band.seed, resamples=band.resamples)


def loss_intervals(curve: RobustnessCurve, losses: Sequence[LossLike]) -> list[Interval]:
    """Intervals of total robust losses, exact where every image adds 0 or every image adds 1.

    All come from the same resamples, which are those of `total_robust_loss_interval`.
    """
    columns = torch.stack([curve.image_losses(loss) for loss in losses], dim=1)
    band = bootstrap_band(columns)
    none, every = _agreed(len(columns))
    intervals = []
    for column, low, high in zip(columns.T, band.low.tolist(), band.high.tolist(), strict=True):
        if bool((column == 0).all()):
            intervals.append(none)
        elif bool((column == 1).all()):
            intervals.append(every)
        else:
            intervals.append(
                Interval(
                    low=low,
                    high=high,
                    level=band.level,
                    method="bootstrap",
                    seed=band.seed,
                    resamples=band.resamples,
                )
            )
    return intervals


def _agreed(count: int) -> tuple[Interval, Interval]:
    """The exact intervals after none and after all of `count`."""
    return clopper_pearson(0, count), clopper_pearson(count, count)
