from __future__ import annotations

import pytest
import torch

from cpr_wrap.metrics import RampLoss, StepLoss, clopper_pearson
from cpr_wrap.report.confidence import error_band, loss_intervals
from tests.report.making import INF, plain

HALF = torch.tensor([0.0, 0.5], dtype=torch.float64)


def test_where_images_differ_it_is_the_bootstrap():
    curve = plain()
    ours, theirs = error_band(curve, HALF), curve.error_band(HALF)
    assert torch.equal(ours.low, theirs.low)
    assert torch.equal(ours.high, theirs.high)
    wanted = (StepLoss(0.5), RampLoss(2), "ramp:4")
    for loss, interval in zip(wanted, loss_intervals(curve, wanted), strict=True):
        alone = curve.total_robust_loss_interval(loss)
        assert (interval.low, interval.high) == pytest.approx((alone.low, alone.high))
        assert interval.method == alone.method == "bootstrap"
        assert (interval.seed, interval.resamples) == (alone.seed, alone.resamples)


def test_where_no_image_is_an_error_the_interval_still_has_width():
    curve = plain(outer=[INF] * 10, rejected=[0.15] * 10)  # errors from alpha = 0.75 on
    band = error_band(curve, HALF)
    assert band.low.tolist() == [0, 0]
    assert band.high.tolist() == [clopper_pearson(0, 10).high] * 2
    assert loss_intervals(curve, [StepLoss(0.5)]) == [clopper_pearson(0, 10)]


def test_where_every_image_is_an_error_too():
    curve = plain(outer=[0.1] * 10, rejected=[INF] * 10)
    band = error_band(curve, HALF)
    assert band.low.tolist() == [clopper_pearson(10, 10).low] * 2
    assert band.high.tolist() == [1, 1]
    assert loss_intervals(curve, [RampLoss(1)]) == [clopper_pearson(10, 10)]
