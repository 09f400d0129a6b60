from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpr_wrap import noise
from cpr_wrap.geometry import THREATS, per_row, spread, threat

from .devices import only_on
from .toys import pixels

NORMS = list(THREATS)
norms = pytest.mark.parametrize("norm", NORMS)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_norms_we_have():
    assert NORMS == ["L2", "Linf"]
    assert [threat(norm).name for norm in NORMS] == NORMS


def test_an_unknown_norm_is_named():
    with pytest.raises(LookupError, match=r"unknown threat model 'L7'.* Known: L2, Linf"):
        threat("L7")


def test_distances_by_hand():
    z, x = rows([0.3, 0.4], [1.0, 1.0]), rows([0.0, 0.0], [1.0, 0.5])
    assert torch.allclose(threat("Linf").distance(z, x), rows(0.4, 0.5))
    assert torch.allclose(threat("L2").distance(z, x), rows(0.5, 0.5))


def test_distance_is_measured_in_float64():
    x = torch.zeros(1, 3)
    z = torch.full_like(x, 1 / 3)
    assert threat("L2").distance(z, x).dtype == torch.float64
    assert threat("Linf").distance(z, x).item() == z[0, 0].double().item()


def test_projection_by_hand():
    x = rows([0.5, 0.5], [0.95, 0.5])
    z = rows([0.5 + 0.6, 0.5 + 0.8], [0.95 + 0.6, 0.5 - 0.8])
    assert torch.allclose(threat("Linf").project(z, x, 0.1), rows([0.6, 0.6], [1.0, 0.4]))
    assert torch.allclose(threat("L2").project(z, x, 0.1), rows([0.56, 0.58], [1.0, 0.42]))


@norms
def test_a_radius_for_each_row(norm):
    x = pixels(3)
    z = x + 1
    radius = rows(0.0, 0.05, 0.2)
    whole = threat(norm).project(z, x, radius)
    for i in range(3):
        one = threat(norm).project(z[i : i + 1], x[i : i + 1], float(radius[i]))
        assert torch.equal(whole[i : i + 1], one)
    assert torch.equal(whole[0], x[0])


@norms
def test_points_inside_stay_to_the_last_bit(norm):
    x = pixels(20).float()
    z = (x + 0.01 * (pixels(20, seed=1).float() - 0.5)).clamp(0, 1)
    assert torch.equal(threat(norm).project(z, x, 0.1), z)


@norms
@pytest.mark.parametrize("radius", [0.05, 0.4, 2.0])
def test_excess_is_what_projecting_takes_off(norm, radius):
    x, z = pixels(3, 2, 4, 4).double(), pixels(5, 2, 4, 4).double().flip(1)
    excess = threat(norm).excess(z, x, radius)
    assert excess.shape == (3, 5)
    for n, centre in enumerate(x):
        for d, point in enumerate(z):
            inside = threat(norm).project(point[None], centre[None], radius)
            torch.testing.assert_close(excess[n, d], (inside - point).abs().sum())
    assert threat(norm).excess(z, x[:0], radius).shape == (0, 5)


def test_directions_by_hand():
    gradient = rows([3.0, -4.0], [0.0, 0.0], [0.0, -2.0])
    assert torch.equal(threat("Linf").steepest(gradient), rows([1, -1], [0, 0], [0, -1]))
    assert torch.allclose(threat("L2").steepest(gradient), rows([0.6, -0.8], [0, 0], [0, -1]))


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-20, 1e20, 1e30])
def test_direction_does_not_depend_on_the_gradients_size(size):
    # A sure network's gradients are tiny; their squares underflow in float32.
    gradient = torch.tensor([[3.0, -4.0]])
    for norm in NORMS:
        expected = threat(norm).steepest(gradient)
        assert torch.allclose(threat(norm).steepest(gradient * size), expected, rtol=1e-5)


@norms
def test_direction_is_the_steepest(norm):
    gradient = pixels(50, 1, 2, 2, seed=2) - 0.5
    step = threat(norm).steepest(gradient)
    assert torch.allclose(
        threat(norm).distance(step, torch.zeros_like(step)), torch.ones(50).double()
    )
    gain = (step * gradient).flatten(1).sum(1)
    for seed in range(5):
        key = noise.keys(seed, torch.arange(50))
        other = threat(norm).uniform_offset(gradient, 1.0, key)
        assert ((other * gradient).flatten(1).sum(1) <= gain + 1e-12).all()


dtypes = st.sampled_from([torch.float32, torch.float64])
radii = st.floats(0, 3, allow_subnormal=False)
lengths = st.floats(0, 10, allow_subnormal=False)
seeds = st.integers(0, 10_000)


def random_case(seed, length, dtype, size=48):
    x, push = pixels(4, size, seed=seed), pixels(4, size, seed=seed + 1) - 0.5
    x[:, :8] = (x[:, :8] > 0.5).double()  # some pixels on the bounds
    return x.to(dtype), (x + length * push).to(dtype)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds, length=lengths, radius=radii, dtype=dtypes)
def test_projection_laws(norm, seed, length, radius, dtype):
    x, z = random_case(seed, length, dtype)
    point = threat(norm).project(z, x, radius)
    assert point.dtype == dtype
    assert point.min() >= 0
    assert point.max() <= 1
    slack = threat(norm).slack(x)
    assert (threat(norm).distance(point, x) <= radius + slack).all()
    again = threat(norm).project(point, x, radius)
    if norm == "Linf":
        assert torch.equal(again, point)
    assert torch.allclose(again, point, atol=slack, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=seeds, length=lengths, radius=radii, dtype=dtypes)
def test_strict_projection_never_exceeds_the_radius(norm, seed, length, radius, dtype):
    x, z = random_case(seed, length, dtype)
    point = threat(norm).project_strictly(z, x, radius)
    assert (threat(norm).distance(point, x) <= radius).all()
    assert point.min() >= 0
    assert point.max() <= 1


@norms
def test_strict_projection_of_large_images(norm):
    # The rounding of a long sum grows with its length.
    for seed, radius in ((0, 0.5), (1, 8 / 255), (2, 5.0), (3, 40.0)):
        x, z = random_case(seed, 6.0, torch.float32, size=3 * 64 * 64)
        point = threat(norm).project_strictly(z, x, radius)
        assert (threat(norm).distance(point, x) <= radius).all()


@norms
def test_strict_projection_gives_up_next_to_nothing(norm):
    x, z = random_case(0, 6.0, torch.float32)
    lost = threat(norm).project(z, x, 0.1) - threat(norm).project_strictly(z, x, 0.1)
    assert lost.abs().max() <= 2 * threat(norm).slack(x)


@norms
def test_nothing_given_is_changed(norm):
    x, z = pixels(2), pixels(2, seed=1) * 3 - 1
    kept_x, kept_z = x.clone(), z.clone()
    threat(norm).project(z, x, 0.1)
    threat(norm).project_strictly(z, x, 0.1)
    threat(norm).project(x, x, 0.1).add_(1)
    assert torch.equal(x, kept_x)
    assert torch.equal(z, kept_z)


def test_random_start_is_uniform_in_its_length():
    x = torch.zeros(4000, 3, dtype=torch.float64)
    for norm in NORMS:
        offset = threat(norm).random_offset(x, 2.0, noise.keys(0, torch.arange(4000)))
        length = threat(norm).distance(offset, x) / 2
        assert length.max() < 1 + 1e-9
        assert abs(length.mean() - 1 / 2) < 5 / (12 * 4000) ** 0.5
        assert abs(offset.mean()) < 0.05


@pytest.mark.parametrize(("norm", "mean"), [("Linf", 3 / 4), ("L2", 3 / 4)])
def test_uniform_start_fills_the_threat(norm, mean):
    # In d dimensions the length of a uniform point of a unit ball has mean d / (d + 1).
    x = torch.zeros(4000, 3, dtype=torch.float64)
    offset = threat(norm).uniform_offset(x, 2.0, noise.keys(0, torch.arange(4000)))
    length = threat(norm).distance(offset, x) / 2
    assert length.max() <= 1 + 1e-9
    assert abs(length.mean() - mean) < 5 * (3 / 80 / 4000) ** 0.5  # variance d / ((d+1)²(d+2))
    assert (offset.mean(0).abs() < 0.1).all()


@norms
@pytest.mark.parametrize("start", ["random_offset", "uniform_offset"])
def test_starts_follow_radius_and_key(norm, start):
    x = pixels(4).float()
    key = noise.keys(0, torch.arange(4))
    draw = getattr(threat(norm), start)
    whole = draw(x, 0.3, key)
    assert whole.shape == x.shape
    assert whole.dtype == x.dtype
    assert torch.equal(draw(x[2:], 0.3, key[2:]), whole[2:])
    radius = torch.tensor([0.0, 0.3, 0.3, 0.6])
    scaled = draw(x, radius, key)
    assert torch.equal(scaled[0], torch.zeros_like(x[0]))
    assert torch.equal(scaled[1:3], whole[1:3])
    assert torch.allclose(scaled[3], 2 * whole[3])


def test_shapes_for_broadcasting():
    x = torch.zeros(2, 3, 4)
    assert per_row(0.5, x).shape == (1, 1, 1)
    assert per_row(torch.ones(2, dtype=torch.float64), x).shape == (2, 1, 1)
    assert per_row(torch.ones(2, dtype=torch.float64), x).dtype == x.dtype
    assert spread(torch.ones(2), x).shape == (2, 1, 1)


@norms
def test_follows_its_inputs_to_any_device(norm):
    x = torch.zeros(3, 1, 2, 2, device="meta")
    key = torch.zeros(3, dtype=torch.int64, device="meta")
    shape = threat(norm)
    with only_on("meta"):
        for result in (
            shape.project(x, x, 0.1),
            shape.project_strictly(x, x, 0.1),
            shape.steepest(x),
            shape.distance(x, x),
            shape.random_offset(x, 0.1, key),
            shape.uniform_offset(x, 0.1, key),
        ):
            assert result.device.type == "meta"
