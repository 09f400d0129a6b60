from __future__ import annotations

import copy

import pytest
import torch
from benchmark.training import measure_training_speed, our_step, straightforward_step

from cpr_wrap.training import AT
from tests.training.making import small_network, stripes


def test_both_loops_do_the_same_work():
    first = small_network().double().train()
    second = copy.deepcopy(first)
    x, y = stripes(12)
    for step, network in ((our_step, first), (straightforward_step, second)):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for turn in range(3):
            step(network, optimizer, AT(eps=0.1, steps=4), x.double(), y, torch.arange(12) + turn)
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.allclose(a, b)


def test_speeds_are_images_a_second():
    speed = measure_training_speed(batch_size=4, rounds=1)
    assert speed.ours > 0
    assert speed.straightforward > 0
    assert speed.ratio == pytest.approx(speed.ours / speed.straightforward)
    assert "times faster" in str(speed)


def test_other_methods_are_refused():
    with pytest.raises(TypeError, match="expected a recipe of method 'at', got one of 'trades'"):
        measure_training_speed("mnist-compact-trades")


@pytest.mark.slow
def test_frozen_parameters_make_it_at_least_1_3_times_faster():
    assert measure_training_speed(rounds=9).ratio >= 1.3
