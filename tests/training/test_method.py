from __future__ import annotations

import pytest
import torch

from cpr_wrap.geometry import threat
from cpr_wrap.training.method import METHODS, AdversarialMethod, Method, register_method
from cpr_wrap.training.methods import StandardTraining
from tests.toys import Line

ADVERSARIAL = [name for name in METHODS if issubclass(METHODS[name], AdversarialMethod)]
STARTS = ("uniform", "ray", "ray-or-zero", "gaussian", "zero")


def first_points(start: str, norm: str = "Linf", count: int = 400) -> torch.Tensor:
    """Where attacks of no length begin, relative to mid-gray images."""
    x = torch.full((count, 1, 3, 3), 0.5, dtype=torch.float64)
    method = METHODS["at"](eps=0.2, steps=1, step_size=1e-12, norm=norm, start=start)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 2)).double()
    z = method.attack(network, lambda z: network(z)[:, 0], x, torch.arange(count))
    return (z - x).flatten(1)


def test_all_methods_of_the_paper_and_five_more_are_there():
    assert set(METHODS) == {
        "standard", "at", "fast-at", "trades", "mart", "ccat", "rcd", "atrr", "ibp"
    }  # fmt: skip


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("start", STARTS)
def test_starts_are_inside_the_threat(start, norm):
    offset = first_points(start, norm)
    length = threat(norm).distance(offset, torch.zeros_like(offset))
    assert length.max() <= 0.2 + 1e-9
    if start == "zero":
        assert length.max() < 1e-9
    if start == "gaussian":
        assert offset.std().item() == pytest.approx(0.001, rel=0.05)


def test_starts_have_the_spread_they_are_named_for():
    lengths = {start: first_points(start).abs().amax(dim=1) for start in STARTS}
    # the largest of nine uniform coordinates; a uniform length along a ray; that or nothing
    assert lengths["uniform"].mean().item() == pytest.approx(0.2 * 9 / 10, rel=0.02)
    assert lengths["ray"].mean().item() == pytest.approx(0.1, rel=0.1)
    assert (lengths["ray-or-zero"] < 1e-9).double().mean().item() == pytest.approx(0.5, abs=0.07)


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_scaling_scales_ball_and_step_together(name):
    for step_size in (None, 0.02):
        method = METHODS[name](eps=0.2, step_size=step_size)
        half = method.scaled(0.5)
        assert type(half) is type(method)
        assert half.eps == pytest.approx(0.1)
        assert half.pgd.step_size == pytest.approx(method.pgd.step_size / 2)
        assert half.steps == method.steps
    assert StandardTraining().scaled(0.5) == StandardTraining()


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_default_step_is_in_proportion_to_eps(name):
    method = METHODS[name](eps=0.3)
    assert method.pgd.step_size == pytest.approx(method.reach * 0.3 / method.steps)


def test_keep_best_learns_from_the_best_point_seen():
    x = torch.tensor([[0.8]], dtype=torch.float64)
    # 3 steps of 0.15 in a ball of 0.2 walk back from the far end when the slope turns
    network = Line(slope=2)

    def bump(z):
        return -((z - 0.75).abs()).squeeze(1)

    points = {
        keep: METHODS["at"](eps=0.2, steps=3, step_size=0.15, start="zero", keep=keep).attack(
            network, bump, x, torch.tensor([0])
        )
        for keep in ("last", "best")
    }
    assert points["last"].item() == pytest.approx(0.65)
    assert points["best"].item() == pytest.approx(0.8)


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_impossible_settings_are_refused(name):
    with pytest.raises(ValueError, match="eps: expected a finite number above 0, got -1"):
        METHODS[name](eps=-1)
    with pytest.raises(ValueError, match="start: expected one of uniform, ray"):
        METHODS[name](start="corner")
    with pytest.raises(ValueError, match="steps: expected at least 1, got 0"):
        METHODS[name](steps=0)
    with pytest.raises(LookupError, match="unknown threat model 'L3'"):
        METHODS[name](norm="L3")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("trades", "beta"),
        ("mart", "beta"),
        ("ccat", "rho"),
        ("rcd", "abstain_weight"),
        ("rcd", "clean_weight"),
        ("atrr", "rectify_weight"),
    ],
)
def test_weights_are_positive(name, setting):
    with pytest.raises(ValueError, match=f"{setting}: expected a finite number above 0, got 0"):
        METHODS[name](**{setting: 0.0})


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="training method 'at' is registered already"):

        @register_method("at")
        class Other(Method):
            def loss(self, network, x, y, keys):
                raise NotImplementedError
