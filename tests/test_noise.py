from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpr_wrap import noise

from .devices import only_on

MASK = 2**64 - 1


def splitmix(value: int) -> int:
    """SplitMix64's finaliser in Python integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_uniform_is_splitmix64_in_counter_mode():
    key = noise.keys(3, torch.arange(4))
    drawn = noise.uniform(key, 5)
    for row, start in zip(drawn.tolist(), key.tolist(), strict=True):
        state = start & MASK
        for number in row:
            state = (state + 0x9E3779B97F4A7C15) & MASK
            assert number == (splitmix(state) >> 11) * 2.0**-53


def test_keys_of_a_grid_never_collide():
    image, attack, target, restart = torch.meshgrid(
        torch.arange(100), torch.arange(5), torch.arange(10), torch.arange(6), indexing="ij"
    )
    grid = [noise.keys(seed, image, attack, target, restart) for seed in (0, 1, 2)]
    keys = torch.stack(grid).flatten()
    assert keys.unique().numel() == keys.numel() == 3 * 30_000


def test_parts_are_not_exchangeable_nor_summable():
    assert noise.keys(0, 1, 2) != noise.keys(0, 2, 1)
    assert noise.keys(0, 1, 2) != noise.keys(0, 3)
    assert noise.keys(0, 1) != noise.keys(1, 0)
    assert noise.keys(0) != noise.keys(0, 0)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_a_number_and_a_tensor_give_the_same_key(seed, part):
    assert noise.keys(seed, part) == noise.keys(seed, torch.tensor([part])).squeeze()


def test_parts_broadcast():
    together = noise.keys(5, torch.arange(3)[:, None], torch.arange(4), 7)
    assert together.shape == (3, 4)
    assert together[2, 1] == noise.keys(5, 2, 1, 7)


@pytest.mark.parametrize("draw", [noise.uniform, noise.normal])
def test_numbers_do_not_depend_on_the_batch(draw):
    index = torch.arange(12)
    whole = draw(noise.keys(0, index), 7)
    parts = torch.cat([draw(noise.keys(0, part), 7) for part in index.split([5, 1, 6])])
    backwards = draw(noise.keys(0, index.flip(0)), 7).flip(0)
    assert torch.equal(whole, parts)
    assert torch.equal(whole, backwards)


def test_no_global_generator_is_used():
    before = torch.get_rng_state()
    noise.normal(noise.keys(0, torch.arange(3)), 4)
    assert torch.equal(before, torch.get_rng_state())


# The bounds below are five standard errors of the mean of 200 000 independent numbers.
DRAWS = (1000, 200)
ERROR = 5 / math.sqrt(DRAWS[0] * DRAWS[1])


def test_uniform_numbers_look_uniform():
    u = noise.uniform(noise.keys(0, torch.arange(DRAWS[0])), DRAWS[1])
    assert 0 <= u.min() < u.max() < 1
    assert abs(u.mean() - 1 / 2) < ERROR * math.sqrt(1 / 12)
    assert abs(u.square().mean() - 1 / 3) < ERROR * math.sqrt(4 / 45)
    counts = torch.histc(u, 10, 0, 1)
    chi_square = ((counts - u.numel() / 10).square() / (u.numel() / 10)).sum()
    assert chi_square < 33.7  # 9 degrees of freedom: exceeded once in 10 000


def test_normal_numbers_look_normal():
    g = noise.normal(noise.keys(0, torch.arange(DRAWS[0])), DRAWS[1])
    assert abs(g.mean()) < ERROR
    assert abs(g.square().mean() - 1) < ERROR * math.sqrt(2)
    assert abs((g.abs() < 1).double().mean() - math.erf(1 / math.sqrt(2))) < ERROR * 0.47


@pytest.mark.parametrize(
    "pair",
    [
        lambda g: (g[:, :-1], g[:, 1:]),  # next to each other in a row
        lambda g: (g[:-1], g[1:]),  # the same place in rows with neighboring keys
        lambda g: (g[:, :100], g[:, 100:]),  # the two halves of Box and Muller's transform
    ],
)
def test_normal_numbers_are_uncorrelated(pair):
    first, second = pair(noise.normal(noise.keys(0, torch.arange(DRAWS[0])), DRAWS[1]))
    assert abs((first * second).mean()) < 5 / math.sqrt(first.numel())
    assert abs((first.square() * second.square()).mean() - 1) < 5 * math.sqrt(8 / first.numel())


def test_an_odd_count_is_a_prefix_of_nothing_missing():
    key = noise.keys(0, torch.arange(3))
    assert noise.normal(key, 5).shape == (3, 5)
    assert noise.normal(key, 1).shape == (3, 1)
    assert noise.normal(key, 5).isfinite().all()


def test_follows_the_device_of_its_parts():
    index = torch.arange(3, device="meta")
    with only_on("meta"):
        assert noise.normal(noise.keys(0, 7, index), 4).device.type == "meta"
