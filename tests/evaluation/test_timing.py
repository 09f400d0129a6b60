"""Bare times, on a clock that moves only when a network works."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cpr_wrap.evaluation import benchmark
from cpr_wrap.evaluation.benchmark import BarePasses, prediction_cost, timed
from cpr_wrap.meter import Passes
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.smoothing import exact, smoothed
from tests.evaluation.test_curve import make

CPU = torch.device("cpu")


class Clock:
    """Tells seconds on the wall, and half as many of processors."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def process_time(self):
        return self.now / 2


class Costly(torch.nn.Module):
    """Moves the clock by 3 for a forward and by 5 for a backward of one image."""

    def __init__(self, network, clock):
        super().__init__()
        self.network, self.clock = network, clock
        self.forward_seconds = 3.0
        self.eval()

    def forward(self, x):
        self.clock.now += self.forward_seconds * len(x)
        if x.requires_grad:
            x.register_hook(self._backward)
        return self.network(x)

    def _backward(self, gradient):
        self.clock.now += 5.0 * len(gradient)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(benchmark, "time", clock)
    return clock


def costly(name, clock, count=3):
    model, x, y = make(name, count=count)
    return SelectiveClassifier(Costly(model.base, clock), model.rule), x, y


def test_bare_passes(clock):
    model, x, _ = costly("cpr", clock)
    bare = BarePasses(model, x)
    assert bare.spent.tolist() == [0, 0]
    bare.sample()
    bare.sample()
    assert bare.samples == 2
    assert bare.average.tolist() == [[3, 1.5], [5, 2.5], [5, 2.5]]
    assert bare.of(Passes(10, 4)).tolist() == [50, 25]
    assert bare.spent.tolist() == [2 * 3 * (3 + 8 + 8), 3 * (3 + 8 + 8)]


def test_smoothed_passes_are_timed_as_such(clock):
    model, x, _ = costly("cpr", clock)
    bare = BarePasses(model, x)
    bare.smoothed_once = lambda: setattr(clock, "now", clock.now + 3 * (3 + 9))
    bare.sample()
    bare.sample()
    assert bare.average[1:, 0].tolist() == [5, 9]
    assert bare.of(Passes(10, 4, smoothed=3))[0] == 3 * 10 + 5 + 9 * 3


def test_samples_are_spread_over_a_run_and_average_a_machine_that_slows_down(clock):
    model, x, _ = costly("none", clock)
    bare = BarePasses(model, x)
    with bare.sampling():
        model.base(x)  # no second has passed yet
        assert bare.samples == 0
        with smoothed():
            model.base(x)  # nor would it time the right kind of passes here
        with exact():
            model.base(x)
        assert bare.samples == 0
        model.base(x)
        assert bare.samples == 1
        model.base.forward_seconds = 9.0
        clock.now += 1
        model.base(x)
        assert bare.samples == 2
    clock.now += 1
    model.base(x)
    assert bare.samples == 2
    assert bare.average[:2, 0].tolist() == [6, 5]


def test_a_sample_is_long_enough_to_measure(clock):
    model, x, _ = costly("none", clock)
    # 8 for a gradient of an image are 4 of processors; a sample wants 0.1.
    model.base.clock = SimpleNamespace(now=0.0)
    quick = BarePasses(model, x)
    assert quick.repeats > 1000  # nothing moved the clock, and yet it ends
    model.base.clock = clock
    assert BarePasses(model, x).repeats == 1


def test_a_prediction_costs_its_passes_and_nothing_else(clock):
    model, x, _ = costly("cpr", clock)
    m = model.rule.steps
    taken, ratio = prediction_cost(model, x, rounds=2)
    assert taken.tolist() == [3 * ((m + 1) * 3 + m * 5), 1.5 * ((m + 1) * 3 + m * 5)]
    assert ratio.tolist() == [1, 1]


def test_overhead_of_a_prediction_is_seen(clock):
    model, x, _ = costly("none", clock)
    judge = model.judge

    def slow(x):
        clock.now += 0.5 * 3 * len(x)
        return judge(x)

    model.judge = slow
    assert prediction_cost(model, x, rounds=2)[1].tolist() == [1.5, 1.5]


def test_parameters_are_asked_for_no_gradient_and_stay_as_they_were(clock):
    model, x, _ = costly("cpr", clock)
    bare = BarePasses(model, x)
    bare.sample()
    assert all(p.requires_grad and p.grad is None for p in model.base.parameters())


def test_work_gives_its_answer_beside_its_time(clock):
    def work():
        clock.now += 2
        return "done"

    done, taken = timed(work, CPU)
    assert (done, taken.tolist()) == ("done", [2, 1])


def test_a_gpu_is_waited_for(clock, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    timed(lambda: None, torch.device("cuda", 1))
    assert waited == [torch.device("cuda", 1)]


def test_one_disturbed_turn_does_not_count(clock):
    model, x, _ = costly("none", clock)
    judge, turns = model.judge, []

    def disturbed(x):
        turns.append(len(x))
        clock.now += 1000 if len(turns) == 4 else 0
        return judge(x)

    model.judge = disturbed
    taken, ratio = prediction_cost(model, x, rounds=3)
    assert len(turns) == 5  # one to count passes, one that does not count, three that do
    assert (taken.tolist(), ratio.tolist()) == ([9, 4.5], [1, 1])
