from __future__ import annotations

import math
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from cpr_wrap.metrics import bootstrap_interval, bootstrap_means, clopper_pearson
from cpr_wrap.metrics import intervals as module


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


def test_bootstrap_means_have_the_mean_and_spread_of_theory():
    values = torch.arange(100, dtype=torch.float64)
    means = bootstrap_means(values, resamples=5000, seed=1)
    spread = values.std(correction=0).item() / 10
    assert means.mean().item() == pytest.approx(49.5, abs=4 * spread / math.sqrt(5000))
    assert means.std().item() == pytest.approx(spread, rel=0.05)


def test_the_band_holds_its_share_of_the_resampled_means():
    values = torch.arange(200, dtype=torch.float64)
    means = bootstrap_means(values, resamples=2000, seed=9)
    interval = bootstrap_interval(values, level=0.8, resamples=2000, seed=9)
    assert (means < interval.low).double().mean().item() == pytest.approx(0.1, abs=0.002)
    assert (means > interval.high).double().mean().item() == pytest.approx(0.1, abs=0.002)


def test_columns_share_their_draws():
    values = torch.rand(20, 1, generator=torch.Generator().manual_seed(0)).double()
    means = bootstrap_means(torch.cat([values, 2 * values], dim=1), resamples=50)
    torch.testing.assert_close(means[:, 1], 2 * means[:, 0])


def test_memory_blocks_change_nothing(monkeypatch):
    values = torch.arange(10.0)
    whole = bootstrap_means(values, resamples=17, seed=5)
    monkeypatch.setattr(module, "_BLOCK", 30)
    torch.testing.assert_close(bootstrap_means(values, resamples=17, seed=5), whole)


def test_draws_follow_their_seed_and_leave_the_global_generator_alone():
    values = torch.arange(10.0)
    before = torch.get_rng_state()
    assert torch.equal(bootstrap_means(values, seed=1), bootstrap_means(values, seed=1))
    assert not torch.equal(bootstrap_means(values, seed=1), bootstrap_means(values, seed=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interval_reads_well():
    interval = bootstrap_interval(torch.tensor([0.5, 0.5]), seed=7, resamples=3)
    assert str(interval) == "[0.5000, 0.5000]"
    assert (interval.seed, interval.resamples, interval.level) == (7, 3, 0.95)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: clopper_pearson(3, 2), "got 3 successes in 2 trials"),
        (lambda: clopper_pearson(-1, 2), "expected 0 <= successes <= trials"),
        (lambda: clopper_pearson(0, 0), "at least one trial"),
        (lambda: clopper_pearson(1, 2, 1.0), "level: expected a number between 0 and 1"),
        (lambda: bootstrap_interval(torch.ones(2), level=95), "level: expected a number between"),
        (lambda: bootstrap_means(torch.ones(0)), "values of at least one image"),
        (lambda: bootstrap_means(torch.ones(2), resamples=0), "resamples: expected at least 1"),
    ],
)
def test_wrong_requests_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
