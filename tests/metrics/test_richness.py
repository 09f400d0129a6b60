"""Estimates of what more rounds would find: closed forms, and a law on simulated rounds."""

from __future__ import annotations

import pytest
import torch

from cpr_wrap.metrics.intervals import richness


def rounds_of(counts, rounds):
    """Rounds in which each image is broken as often as told."""
    return torch.stack([torch.tensor([number < c for c in counts]) for number in range(rounds)])


def test_by_hand():
    found = richness(rounds_of([4, 1, 1, 1, 2, 0, 0, 0, 0, 0], 4))
    assert found.broken == 5
    assert found.jackknife == 5 + 3 * 3 / 4
    assert found.chao == 5 + 3 / 4 * 3 * 2 / (2 * 2)
    assert found.broken < found.low < found.chao < found.high <= 10


def test_where_every_round_breaks_the_same_nothing_is_missing():
    found = richness(rounds_of([3, 3, 0, 0], 3))
    assert found.jackknife == found.chao == found.low == found.high == 2
    assert found.more == (0, 0)


def test_no_estimate_exceeds_the_images():
    found = richness(rounds_of([1, 1, 1, 0], 2))
    assert found.high <= 4
    assert found.more[1] <= 1


def test_on_simulated_rounds_the_estimate_is_nearer_than_the_count():
    random = torch.Generator().manual_seed(0)
    chance = torch.rand(400, generator=random) ** 3  # many images that fall rarely
    draws = torch.rand(20, 400, generator=random) < chance
    final = int(draws.any(dim=0).sum())
    early = richness(draws[:5])
    assert abs(early.jackknife - final) < abs(early.broken - final)
    assert early.low <= final * 1.1


@pytest.mark.parametrize("shape", [(1, 5), (5,)])
def test_one_round_says_nothing(shape):
    with pytest.raises(ValueError, match="at least two rounds"):
        richness(torch.zeros(shape, dtype=torch.bool))
