"""Paired tests against closed forms: coins can be counted."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.metrics.comparison import (
    Difference,
    clear_winner,
    paired,
    paired_loss,
    sign_flip_test,
)

from .making import INF, make


def by_counting(apart):
    """All signs, one after the other."""
    total = abs(sum(apart))
    sums = [abs(sum(s * a for s, a in zip(signs, apart, strict=True)))
            for signs in product((-1, 1), repeat=len(apart))]  # fmt: skip
    return sum(s >= total - 1e-12 for s in sums) / len(sums)


@pytest.mark.parametrize(
    "apart", [[0.5, 0.25, 0.1], [1.0, 1.0, 1.0, 0.3], [0.2, -0.7, 0.9, 0.4, 0.3], [0.5, -0.25]]
)
def test_few_differences_are_counted_exactly(apart):
    found = sign_flip_test(torch.tensor([*apart, 0.0, 0.0], dtype=torch.float64))
    assert found == pytest.approx(by_counting(apart))


@pytest.mark.parametrize(("more", "fewer", "chance"), [(6, 0, 2 / 64), (5, 0, 2 / 32), (3, 3, 1)])
def test_equal_sizes_make_a_sign_test(more, fewer, chance):
    apart = torch.tensor([0.5] * more + [-0.5] * fewer + [0.0] * 20)
    assert sign_flip_test(apart) == pytest.approx(chance)


def test_many_differences_are_drawn_alike_every_time():
    apart = torch.linspace(-0.5, 1.0, 60, dtype=torch.float64)
    assert sign_flip_test(apart) == sign_flip_test(apart) < 0.01
    even = torch.linspace(-1, 1, 60, dtype=torch.float64)
    assert sign_flip_test(even) > 0.5


def test_no_difference_is_no_evidence():
    assert sign_flip_test(torch.zeros(5)) == 1.0
    assert paired(torch.ones(3), torch.ones(3)).sign == 0


def test_the_sign_follows_the_gap_and_the_chance():
    assert [Difference(gap=g, chance=p, images=9).sign for g, p in
            [(0.2, 0.04), (-0.2, 0.04), (0.2, 0.06)]] == [1, -1, 0]  # fmt: skip
    assert str(Difference(gap=0.25, chance=0.0001, images=8)) == "+0.250 (p < 0.001, 8 images)"


def test_only_shared_images_are_compared():
    broken = RobustnessCurve(make([0.1] * 6, [INF] * 6))
    whole = RobustnessCurve(make([INF] * 8, [INF] * 8))
    found = paired_loss(broken, whole, "step:0")
    assert (found.gap, found.images, found.sign) == (1.0, 6, 1)
    elsewhere = RobustnessCurve(broken.records.subset([0]))
    elsewhere.records.index.add_(1000)
    assert paired_loss(elsewhere, whole, "step:0") is None


def test_a_winner_beats_everybody_or_there_is_none():
    good, bad = torch.zeros(20), torch.cat([torch.ones(8), torch.zeros(12)])
    nearly = torch.cat([torch.ones(2), torch.zeros(18)])
    assert clear_winner([bad, good]) == 1
    assert clear_winner([bad, good, nearly]) is None
    assert clear_winner([good]) is None
