"""Figures of the benchmark, on a clock that moves only when a network works."""

from __future__ import annotations

import pytest
import torch

from cpr_wrap.data import ImageData
from cpr_wrap.evaluation import benchmark, robustness_curve
from cpr_wrap.evaluation.benchmark import bare_times, measure, noisy_batch, timed
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.smoothing import active
from tests.budgets import Dark
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
    """Moves the clock by 3 for a forward and by 5 or, smoothed, 9 for a backward of one image."""

    def __init__(self, network, clock):
        super().__init__()
        self.network, self.clock = network, clock
        self.forward_seconds = 3.0
        self.eval()

    def forward(self, x):
        self.clock.now += self.forward_seconds * len(x)
        if x.requires_grad:
            x.register_hook(self._smoothed if active() else self._backward)
        return self.network(x)

    def _backward(self, gradient):
        self.clock.now += 5.0 * len(gradient)

    def _smoothed(self, gradient):
        self.clock.now += 9.0 * len(gradient)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(benchmark, "time", clock)
    return clock


def costly(name, clock, count=3):
    model, x, y = make(name, count=count)
    return SelectiveClassifier(Costly(model.base, clock), model.rule), x, y


def images(x, y) -> ImageData:
    return ImageData(
        images=x, labels=y, indices=torch.arange(len(x)), name="toy", part="robust", num_classes=4
    )


def test_bare_passes_and_predictions_are_timed(clock):
    model, x, _ = costly("cpr", clock)
    m = model.rule.steps
    seconds = [9, 15, 27, 9 * (m + 1) + 15 * m]
    found = bare_times(model, x)
    assert (found == [[wall, wall / 2] for wall in seconds]).all()
    assert len(found) > 1
    assert all(p.requires_grad and p.grad is None for p in model.base.parameters())


def test_an_engine_that_does_nothing_but_passes_is_fully_efficient(clock):
    model, x, y = costly("cpr", clock)
    found = measure(model, images(x, y), 0.1, budget="quick", batch_size=4)
    # The clock moves with passes alone.
    assert found.efficiency == pytest.approx(1)
    assert found.cpu_efficiency == pytest.approx(found.efficiency)
    assert (found.forward, found.backward, found.smoothed) == (3, 5, 9)
    assert found.prediction == (model.rule.steps + 1) * 3 + model.rule.steps * 5
    assert found.prediction_ratio == found.cpu_prediction_ratio == 1
    assert found.cpu_seconds == found.seconds / 2
    plain = robustness_curve(model, x, y, 0.1, budget="quick", batch_size=4)
    assert found.passes_per_image == plain.passes_per_image
    backwards = sum(stage.backwards for stage in plain.passes)
    assert 0 < found.smoothed_share < 1
    assert found.seconds == pytest.approx(
        sum(3 * stage.forwards + 5 * stage.backwards for stage in plain.passes)
        + 4 * found.smoothed_share * backwards
    )
    assert (found.images, found.batch_size) == (3, 4)


def test_an_engine_that_dawdles_is_less_efficient(clock, monkeypatch):
    model, x, y = costly("cpr", clock)
    prompt = measure(model, images(x, y), 0.1, budget=Dark(), batch_size=4)

    def slow(*arguments, **options):
        clock.now += prompt.seconds
        return robustness_curve(*arguments, **options)

    monkeypatch.setattr(benchmark, "robustness_curve", slow)
    found = measure(model, images(x, y), 0.1, budget=Dark(), batch_size=4)
    assert found.efficiency == pytest.approx(prompt.efficiency / 2)


def test_times_before_and_after_a_run_average_a_machine_that_slows_down(clock, monkeypatch):
    model, x, y = costly("none", clock)

    def tiring(*arguments, **options):
        curve = robustness_curve(*arguments, **options)
        model.base.forward_seconds = 9.0
        return curve

    monkeypatch.setattr(benchmark, "robustness_curve", tiring)
    found = measure(model, images(x, y), 0.1, budget=Dark(), batch_size=4)
    assert (found.forward, found.backward) == (6, 5)


def test_overhead_of_a_prediction_is_seen(clock, monkeypatch):
    model, x, y = costly("none", clock)
    judge = SelectiveClassifier.judge

    def slow(model, x):
        clock.now += 0.5 * 3 * len(x)
        return judge(model, x)

    monkeypatch.setattr(SelectiveClassifier, "judge", slow)
    found = measure(model, images(x, y), 0.1, budget=Dark(), batch_size=4)
    assert found.prediction_ratio == found.cpu_prediction_ratio == 1.5


def test_disturbed_predictions_do_not_count(clock):
    model, x, y = costly("none", clock)
    judge, calls = model.judge, []

    def disturbed(x):
        calls.append(len(x))
        clock.now += 1000 if len(calls) in (1, 4) else 0
        return judge(x)

    model.judge = disturbed
    found = measure(model, images(x, y), 0.1, budget=Dark(), batch_size=4)
    assert (found.prediction, found.prediction_ratio) == (3, 1)


def test_quick_passes_are_repeated_to_be_measured(clock, monkeypatch):
    model, x, _ = costly("none", clock)
    monkeypatch.setattr(benchmark, "_SAMPLE_SECONDS", 72)
    monkeypatch.setattr(benchmark, "_ROUNDS", 2)
    forwards = []
    model.base.register_forward_pre_hook(lambda *_: forwards.append(None))
    assert (bare_times(model, x)[:, :, 0] == [9, 15, 27, 9]).all()
    # One pass takes 9, 24, 36 and 9 seconds.
    assert len(forwards) == 4 + 2 * (8 + 3 + 2 + 8)


def test_bare_passes_are_timed_on_noise_around_the_images():
    model, x, _ = make("cpr", count=3)
    batch = noisy_batch(model, x, 8, 0.1)
    assert batch.shape == (8, *x.shape[1:])
    assert ((batch >= 0) & (batch <= 1)).all()
    away = (batch - x[torch.arange(8) % 3]).abs()
    assert (away <= 0.1 + 1e-12).all()
    assert (away > 0).all()
    assert torch.equal(batch, noisy_batch(model, x, 8, 0.1))


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
