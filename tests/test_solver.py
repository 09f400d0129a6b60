from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cpr_wrap.geometry import threat
from cpr_wrap.solver import PGD, Climb, ascend, frozen

from .devices import only_on
from .toys import Curved, pixels

norms = pytest.mark.parametrize("norm", ["Linf", "L2"])


def line(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def rising(z):
    return z.flatten(1).sum(1)


def peak_at(top):
    return lambda z: -(z - top).abs().flatten(1).sum(1)


def bumpy(z):
    """Smooth, with many peaks, and of each row's own point alone."""
    return Curved(outputs=1, scale=40)(z)[:, 0]


def climbed(value, x, radius, steps, step_size, **more):
    return ascend(value, x, radius, PGD(steps=steps, step_size=step_size, **more))


# Paths by hand.


@norms
def test_steps_add_up_until_the_radius_stops_them(norm):
    x = line(0.2)
    assert torch.allclose(climbed(rising, x, 0.5, 3, 0.1, norm=norm), line(0.5))
    assert torch.allclose(climbed(rising, x, 0.25, 3, 0.1, norm=norm), line(0.45))
    assert torch.allclose(climbed(rising, x, 0.5, 3, 0.5, norm=norm), line(0.7))
    assert torch.equal(climbed(rising, line(0.9), 0.5, 3, 0.1, norm=norm), line(1.0))


def test_steps_in_two_dimensions():
    x = torch.full((1, 2), 0.5, dtype=torch.float64)

    def value(z):
        return 3 * z[:, 0] - 4 * z[:, 1]

    sign = climbed(value, x, 1.0, 2, 0.05)
    along = climbed(value, x, 1.0, 2, 0.05, norm="L2")
    assert torch.allclose(sign, torch.tensor([[0.6, 0.4]]).double())
    assert torch.allclose(along, torch.tensor([[0.56, 0.42]]).double())


def test_momentum_by_hand_for_three_steps():
    # Directions +1, +1, -1 (past the peak at 0.35), mean kept 0.5:
    # g = 0.5, 0.75, 0.375 - 0.5 = -0.125, and z = 0.2 + 0.2 g₁ + 0.2 g₂ + 0.2 g₃.
    pgd = PGD(steps=3, step_size=0.2, momentum=0.5)
    climb = Climb(line(0.2), 0.5, pgd)
    path = []
    for gradient in (1.0, 1.0, -1.0):
        climb.step(torch.zeros(1).double(), line(gradient))
        path.append(climb.z.item())
    assert path == pytest.approx([0.3, 0.45, 0.425])
    assert ascend(peak_at(0.35), line(0.2), 0.5, pgd).item() == pytest.approx(0.425)


def test_the_mean_of_directions_is_not_renormalised():
    after = climbed(rising, line(0.0), 1.0, 1, 0.1, momentum=0.9)
    assert after.item() == pytest.approx(0.01)


def test_backtracking_by_hand():
    pgd = PGD(steps=9, step_size=0.2, backtrack=2.0)
    climb = Climb(line(0.2), 0.5, pgd)
    visited, sizes = [], []
    value = peak_at(0.22)
    for _ in range(4):
        point = climb.z.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(value(point).sum(), point)
        climb.step(value(point).detach(), gradient)
        visited.append(climb.z.item())
        sizes.append(climb.step_size.item())
    # 0.4, 0.3 and 0.25 are worse than 0.2 (0.02 away from the peak); 0.225 is better.
    assert visited == pytest.approx([0.4, 0.3, 0.25, 0.225])
    assert sizes == pytest.approx([0.2, 0.1, 0.05, 0.025])


# Laws.


@norms
def test_every_row_has_its_own_radius_and_step_size(norm):
    x = torch.zeros(3, 1, dtype=torch.float64)
    radius = torch.tensor([0.1, 0.2, 0.9], dtype=torch.float64)
    assert torch.allclose(climbed(rising, x, radius, 3, 0.1, norm=norm), line(0.1, 0.2, 0.3))
    climb = Climb(x, 1.0, PGD(steps=1, step_size=0.5, norm=norm), step_size=radius)
    climb.step(rising(x), torch.ones_like(x))
    assert torch.allclose(climb.z, line(0.1, 0.2, 0.9))


def test_one_radius_as_a_tensor():
    x = torch.zeros(3, 1, dtype=torch.float32)
    climb = Climb(x, torch.tensor(0.1, dtype=torch.float64), PGD(steps=1, step_size=0.5))
    assert climb.radius.shape == (3,)
    assert climb.radius.dtype == torch.float32


@norms
def test_a_start_is_respected_and_projected(norm):
    seen = []

    def value(z):
        seen.append(z.detach().clone())
        return rising(z)

    x = line(0.5, 0.5)
    pgd = PGD(steps=1, step_size=0.05, norm=norm)
    moved = ascend(value, x, 0.2, pgd, start=line(0.4, 0.9))
    assert torch.allclose(seen[0], line(0.4, 0.7))
    assert torch.allclose(moved, line(0.45, 0.7))


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@given(
    seed=st.integers(0, 1000),
    steps=st.integers(1, 6),
    step_size=st.floats(0.01, 0.5),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    backtrack=st.sampled_from([None, 1.5]),
    radius=st.floats(0.01, 0.6),
)
def test_laws_of_climbing(norm, seed, steps, step_size, momentum, backtrack, radius):
    x = pixels(5, 4, seed=seed)
    settings = {
        "steps": steps, "step_size": step_size, "momentum": momentum, "norm": norm,
        "backtrack": backtrack,
    }  # fmt: skip
    last = ascend(bumpy, x, radius, PGD(**settings, keep="last"))
    best = ascend(bumpy, x, radius, PGD(**settings, keep="best"))
    for point in (last, best):
        assert (threat(norm).distance(point, x) <= radius + threat(norm).slack(x)).all()
        assert point.min() >= 0
        assert point.max() <= 1
        assert not point.requires_grad
    assert (bumpy(best) >= bumpy(last)).all()
    assert (bumpy(best) >= bumpy(x)).all()
    if backtrack is not None:
        assert (bumpy(last) >= bumpy(x)).all()


def test_backtracking_never_lowers_the_anchor():
    climb = Climb(pixels(20, 4), 0.5, PGD(steps=9, step_size=0.3, backtrack=1.5))
    before = climb.anchor_value
    for _ in range(9):
        point = climb.z.clone().requires_grad_()
        value = bumpy(point)
        (gradient,) = torch.autograd.grad(value.sum(), point)
        sizes = climb.step_size
        climb.step(value.detach(), gradient)
        assert (climb.anchor_value >= before).all()
        assert torch.equal(climb.step_size < sizes, value.detach() < before)
        assert torch.allclose(bumpy(climb.anchor), climb.anchor_value)
        before = climb.anchor_value


def test_the_first_of_equally_good_points_is_kept():
    flat = climbed(lambda z: 0 * z[:, 0], line(0.5), 0.3, 3, 0.1, keep="best")
    assert torch.equal(flat, line(0.5))


@norms
def test_a_row_does_not_depend_on_its_neighbours(norm):
    x = pixels(8, 4)
    settings = {"norm": norm, "momentum": 0.9, "backtrack": 1.5, "keep": "best"}
    whole = climbed(bumpy, x, 0.4, 6, 0.2, **settings)
    parts = [climbed(bumpy, part, 0.4, 6, 0.2, **settings) for part in x.split([1, 4, 3])]
    assert torch.equal(whole, torch.cat(parts))


def test_rows_can_be_taken_out_and_others_put_in():
    pgd = PGD(steps=6, step_size=0.2, momentum=0.5, keep="best", backtrack=1.5)
    x = pixels(6, 4)

    def run(climb, steps):
        for _ in range(steps):
            point = climb.z.clone().requires_grad_()
            value = bumpy(point)
            (gradient,) = torch.autograd.grad(value.sum(), point)
            climb.step(value.detach(), gradient)
        return climb

    alone = run(Climb(x, 0.4, pgd), 5)
    early = run(Climb(x[:4], 0.4, pgd), 2).take(torch.tensor([3, 1]))
    both = run(early.join(Climb(x[4:], 0.4, pgd)), 3)
    assert torch.equal(both.z[:2], alone.z[[3, 1]])
    assert torch.equal(both.best[:2], alone.best[[3, 1]])
    late = run(Climb(x[4:], 0.4, pgd), 3)
    assert torch.equal(both.z[2:], late.z)
    assert torch.equal(both.anchor_value[2:], late.anchor_value)
    assert len(early.z) == 2  # the parts are left as they were


# What it calls, and what it leaves alone.


@pytest.mark.parametrize(("keep", "calls"), [("last", 4), ("best", 5)])
def test_the_function_is_called_once_a_step(keep, calls):
    seen = []

    def value(z):
        seen.append(z)
        return rising(z)

    climbed(value, line(0.2), 0.5, 4, 0.1, keep=keep)
    assert len(seen) == calls


def test_every_step_can_be_watched():
    seen = []
    end = ascend(
        rising, line(0.2), 0.5, PGD(steps=3, step_size=0.1), watch=lambda *step: seen.append(step)
    )
    assert [number for number, _ in seen] == [1, 2, 3]
    assert torch.allclose(torch.cat([z for _, z in seen]), line(0.3, 0.4, 0.5))
    assert torch.equal(seen[-1][1], end)


def test_steps_shrink_geometrically():
    climb = Climb(line(0.0), 1.0, PGD(steps=3, step_size=0.4, shrink=0.25))
    taken = []
    for _ in range(3):
        before = climb.z
        climb.step(torch.zeros(1), torch.ones(1, 1))
        taken.append((climb.z - before).item())
    assert taken == pytest.approx([0.4, 0.2, 0.1])


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_entries_of_a_gradient_that_are_no_numbers_count_as_zero(norm):
    climb = Climb(torch.full((1, 3), 0.5), 0.5, PGD(steps=1, step_size=0.1, norm=norm))
    climb.step(torch.zeros(1), torch.tensor([[torch.nan, torch.inf, 1.0]]))
    assert torch.allclose(climb.z, torch.tensor([[0.5, 0.5, 0.6]]))


def test_nothing_given_is_changed():
    x, start = pixels(3, 4), pixels(3, 4, seed=1)
    kept, kept_start = x.clone(), start.clone()
    moved = ascend(bumpy, x, 0.3, PGD(steps=2, step_size=0.1, keep="best"), start=start)
    moved.zero_()
    assert torch.equal(x, kept)
    assert torch.equal(start, kept_start)


def test_right_inside_no_grad():
    expected = climbed(bumpy, pixels(3, 4), 0.3, 3, 0.1)
    with torch.no_grad():
        assert torch.equal(climbed(bumpy, pixels(3, 4), 0.3, 3, 0.1), expected)


@pytest.mark.parametrize(
    "value",
    [
        lambda z: rising(z.detach()),  # no graph at all
        lambda z: rising(z.detach() * torch.ones(1, requires_grad=True)),  # one without the input
    ],
)
def test_a_function_without_gradient_is_named(value):
    with pytest.raises(RuntimeError, match="no gradient reaches the input: the network detaches"):
        climbed(value, line(0.5), 0.1, 1, 0.1)


@norms
@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("backtrack", [None, 2.0])
def test_follows_its_inputs_to_any_device(norm, keep, backtrack):
    x = torch.empty(3, 4, device="meta")
    pgd = PGD(steps=2, step_size=0.1, momentum=0.9, norm=norm, keep=keep, backtrack=backtrack)
    with only_on("meta"):
        assert ascend(rising, x, 0.1, pgd, start=x).device.type == "meta"


def test_frozen_parameters_thaw_even_after_an_error():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network[0].bias.requires_grad_(False)
    asking = [p.requires_grad for p in network.parameters()]
    with frozen(network):
        assert not any(p.requires_grad for p in network.parameters())
    assert [p.requires_grad for p in network.parameters()] == asking

    def fail():
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), frozen(network):
        fail()
    assert [p.requires_grad for p in network.parameters()] == asking


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"steps": 0}, ValueError, "steps: expected at least 1, got 0"),
        ({"step_size": 0.0}, ValueError, "step_size: expected a finite number above 0, got 0.0"),
        ({"momentum": 1.0}, ValueError, r"momentum: expected a number in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, ValueError, r"momentum: expected a number in \[0, 1\), got -0.1"),
        ({"keep": "all"}, ValueError, "keep: expected 'last' or 'best', got 'all'"),
        ({"backtrack": 1.0}, ValueError, "backtrack: expected a factor above 1, got 1.0"),
        ({"shrink": 0.0}, ValueError, r"shrink: expected a share in \(0, 1\], got 0.0"),
        ({"norm": "L3"}, LookupError, "unknown threat model 'L3'"),
    ],
)
def test_bad_settings_are_named(change, error, text):
    with pytest.raises(error, match=text):
        PGD(**{"steps": 1, "step_size": 0.1, **change})


def test_rows_whose_whole_gradient_is_no_number_are_told_of():
    def value(z):
        # Finite everywhere; at 0.5 its gradient is 0 · infinity.
        return (z - 0.5).square().sqrt().flatten(1).sum(1)

    with pytest.warns(UserWarning, match="CPR accepts them unchecked"):
        end = climbed(value, line(0.5, 0.6), 0.1, 3, 0.05)
    assert end.flatten().tolist() == pytest.approx([0.5, 0.7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        climbed(value, torch.tensor([[0.5, 0.6]], dtype=torch.float64), 0.1, 3, 0.05)  # in part
