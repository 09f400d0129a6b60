from __future__ import annotations

import math
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from cpr_wrap.metrics import clopper_pearson, mean_interval, share_band


@settings(max_examples=40)
@given(st.integers(1, 300), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_exact_intervals_are_scipys(trials, share, level):
    successes = round(share * trials)
    mine = clopper_pearson(successes, trials, level)
    theirs = binomtest(successes, trials).proportion_ci(level, method="exact")
    assert mine.low == pytest.approx(theirs.low, abs=1e-9)
    assert mine.high == pytest.approx(theirs.high, abs=1e-9)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10000), (1, 10000), (4321, 10000)])
def test_exact_intervals_of_a_whole_test_set(successes, trials):
    mine = clopper_pearson(successes, trials)
    theirs = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert mine.low == pytest.approx(theirs.low, rel=1e-7)
    assert mine.high == pytest.approx(theirs.high, rel=1e-7)


def test_no_error_in_n_images_is_the_closed_form():
    interval = clopper_pearson(0, 50)
    assert interval.low == 0
    assert interval.high == pytest.approx(1 - 0.025 ** (1 / 50))
    mirrored = clopper_pearson(50, 50)
    assert mirrored.low == pytest.approx(0.025 ** (1 / 50))
    assert mirrored.high == 1


def test_exact_intervals_cover_at_least_as_often_as_they_say():
    n, level = 12, 0.9
    ends = [clopper_pearson(k, n, level) for k in range(n + 1)]
    for p in [i / 50 for i in range(1, 50)]:
        inside = [k for k in range(n + 1) if ends[k].low <= p <= ends[k].high]
        assert sum(comb(n, k) * p**k * (1 - p) ** (n - k) for k in inside) >= level


def test_a_band_is_made_of_exact_intervals():
    band = share_band(torch.tensor([0, 3, 20]), 20, 0.9)
    singles = [clopper_pearson(k, 20, 0.9) for k in (0, 3, 20)]
    assert band.low.tolist() == [single.low for single in singles]
    assert band.high.tolist() == [single.high for single in singles]


def test_a_share_gets_the_exact_interval():
    values = torch.tensor([0.0] * 17 + [1.0] * 3)
    assert mean_interval(values) == clopper_pearson(3, 20)


def test_other_means_get_a_bootstrap_as_wide_as_theory_says():
    values = torch.arange(100, dtype=torch.float64) / 100
    interval = mean_interval(values, 0.95, resamples=4000)
    width = 2 * 1.96 * values.std(correction=0).item() / 10
    assert interval.method == "bootstrap"
    assert interval.high - interval.low == pytest.approx(width, rel=0.08)
    assert (interval.low + interval.high) / 2 == pytest.approx(0.495, abs=0.01)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 5, 200])
def test_no_interval_is_a_single_number(value, count):
    interval = mean_interval(torch.full((count,), value))
    assert 0 <= interval.low <= value <= interval.high <= 1
    assert interval.high - interval.low > 0.01


def test_hoeffdings_interval_is_the_closed_form():
    interval = mean_interval(torch.full((50,), 0.5), 0.9)
    assert interval.method == "hoeffding"
    assert interval.high - 0.5 == pytest.approx(math.sqrt(math.log(20) / 100))


def test_draws_follow_their_seed_and_leave_the_global_generator_alone():
    values = torch.arange(10.0) / 10
    before, numeric = torch.get_rng_state(), np.random.get_state()[1].tolist()
    assert mean_interval(values, seed=1) == mean_interval(values, seed=1)
    assert mean_interval(values, seed=1) != mean_interval(values, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numeric


def test_an_interval_reads_well():
    assert str(clopper_pearson(1, 1)) == "[0.0250, 1.0000]"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: clopper_pearson(3, 2), r"got \[3\] successes in 2 trials"),
        (lambda: clopper_pearson(-1, 2), "expected 0 <= successes <= trials"),
        (lambda: clopper_pearson(0, 0), "at least one trial"),
        (lambda: clopper_pearson(1, 2, 1.0), "level: expected a number between 0 and 1"),
        (lambda: mean_interval(torch.ones(2), level=95), "level: expected a number between"),
        (lambda: mean_interval(torch.ones(0)), "values of at least one image"),
    ],
)
def test_wrong_requests_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
