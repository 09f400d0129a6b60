"""Intervals over images as tables and charts show them."""

from __future__ import annotations

import torch
from torch import Tensor

from cpr_wrap.metrics import Band, Interval, RobustnessCurve, clopper_pearson
from cpr_wrap.metrics.losses import LossLike


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


def loss_interval(curve: RobustnessCurve, loss: LossLike) -> Interval:
    """Interval of a total robust loss, exact where every image adds 0 or every image adds 1."""
    losses = curve.image_losses(loss)
    none, every = _agreed(len(losses))
    if bool((losses == 0).all()):
        return none
    if bool((losses == 1).all()):
        return every
    return curve.total_robust_loss_interval(loss)


def _agreed(count: int) -> tuple[Interval, Interval]:
    """The exact intervals after none and after all of `count`."""
    return clopper_pearson(0, count), clopper_pearson(count, count)
