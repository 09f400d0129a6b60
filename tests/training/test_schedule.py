from __future__ import annotations

import pytest

from cpr_wrap.training.recipes import Decay, Linear, Milestones


def test_constant():
    assert [Decay(rate=1.0).factor(p, 5) for p in (0.0, 2.5, 4.9)] == [1.0, 1.0, 1.0]


def test_linear_falls_batch_by_batch():
    assert [Linear().factor(p, 4) for p in (0.0, 1.0, 2.5, 4.0)] == [1.0, 0.75, 0.375, 0.0]


def test_linear_may_rise_first():
    triangle = Linear(rise=0.25)
    assert [triangle.factor(p, 8) for p in (0.0, 1.0, 2.0, 5.0, 8.0)] == [0.0, 0.5, 1.0, 0.5, 0.0]
    with pytest.raises(ValueError, match=r"rise: expected a share in \[0, 1\), got 1"):
        Linear(rise=1.0)


def test_decay_goes_down_after_each_epoch():
    factors = [Decay(rate=0.5).factor(p, 10) for p in (0.0, 0.99, 1.0, 1.5, 3.0)]
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.125]


def test_milestones_multiply():
    schedule = Milestones(epochs=(100, 105))
    factors = [schedule.factor(p, 110) for p in (0, 99.9, 100, 104.9, 105)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01])


@pytest.mark.parametrize("schedule", [Linear(), Linear(rise=0.3), Decay(), Milestones(epochs=(2,))])
def test_factors_stay_between_0_and_1(schedule):
    assert all(0 <= schedule.factor(p / 7, 5) <= 1 for p in range(36))
