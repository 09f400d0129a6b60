"""`cpr-wrap bench`: ratios of one run."""

from __future__ import annotations

import json

import pytest
import torch

from cpr_wrap.cli import _timing
from cpr_wrap.cli._timing import measure
from cpr_wrap.data import load_data
from cpr_wrap.meter import count_passes
from cpr_wrap.rules import Consistency
from cpr_wrap.zoo import load


class _Clock:
    """A clock that moves only when a network works: 3 for a forward, 5 for a backward an image."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(_timing, "time", clock)
    return clock


class _Costly(torch.nn.Module):
    """Moves the clock by what its passes cost."""

    def __init__(self, network, clock):
        super().__init__()
        self.network, self.clock = network, clock

    def forward(self, x):
        self.clock.now += 3.0 * len(x)
        if x.requires_grad:
            x.register_hook(self._backward)
        return self.network(x)

    def _backward(self, gradient):
        self.clock.now += 5.0 * len(gradient)


def test_bare_times_and_the_ratio_of_a_prediction(saved, clock):
    rule = Consistency(radius=0.1, steps=4, step_size=0.05)
    model = load(saved, rule=rule)
    model.base = _Costly(model.base, clock).eval()
    data = load_data("mnist", "robust", num=2)
    figures = measure(model, data, 0.05, budget="quick", batch_size=3)
    assert figures.forward == pytest.approx(3)
    assert figures.backward == pytest.approx(5)
    # m + 1 forwards and m backwards, and nothing more.
    assert figures.prediction == pytest.approx(5 * 3 + 4 * 5)
    assert figures.prediction_ratio == pytest.approx(1)
    assert figures.images == 2


def test_efficiency_is_bare_time_over_wall_time(saved, clock, monkeypatch):
    model = load(saved, rule="none")
    model.base = _Costly(model.base, clock).eval()
    curve = type("Curve", (), {})()
    total = {"forwards": 10, "backwards": 4, "per_image": 7.0}
    curve.details = {"passes_total": total, "seconds": 100.0}
    monkeypatch.setattr(_timing, "robustness_curve", lambda *args, **options: curve)
    figures = measure(model, load_data("mnist", "robust", num=2), 0.05, budget="x", batch_size=2)
    assert figures.efficiency == pytest.approx((10 * 3 + 4 * 5) / 100)
    assert figures.passes_per_image == 7


def test_counting_does_not_count_what_was_before(saved):
    model = load(saved, rule="none")
    x = load_data("mnist", "robust", num=2).images
    with count_passes() as passes:
        model(x)
    assert (passes.forwards, passes.backwards) == (2, 0)


def test_the_command(saved, type_command):
    words = ("bench", f"local:{saved}", "-n", "3", "--batch-size", "4", "--rule", "none")
    answer = type_command(*words)
    assert answer.stdout.splitlines()[0] == (
        f"local:{saved}, none (accepts everything), batches of 4"
    )
    assert "engine efficiency" in answer.stdout
    content = json.loads(type_command(*words, "--json").stdout)
    assert content["images"] == 3
    assert content["efficiency"] > 0
