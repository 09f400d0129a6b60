from __future__ import annotations

from contextlib import ExitStack, nullcontext

import pytest
import torch

from cpr_wrap.meter import Passes, count_passes, tally, watch_outputs
from cpr_wrap.rules import AcceptAll, CPRWrapper
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.smoothing import exact, smoothed

from .toys import Curved, Line, pixels


def test_a_plain_classifier_takes_one_forward_an_image():
    model = SelectiveClassifier(Line(), AcceptAll())
    with count_passes() as passes:
        model(pixels(5, 1))
    assert (passes.forwards, passes.backwards, passes.total) == (5, 0, 5)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_consistency_check_takes_m_plus_1_forwards_and_m_backwards(steps):
    model = CPRWrapper(Curved(), radius=0.01, steps=steps, step_size=0.01)
    with count_passes() as passes:
        model(pixels(3))
    assert passes.forwards == 3 * (steps + 1)
    assert passes.backwards == 3 * steps


def test_smoothed_backwards_are_counted_among_all():
    model = SelectiveClassifier(Curved(), AcceptAll())
    with count_passes() as passes:
        for context in (nullcontext(), smoothed(), ExitStack()):
            with context:
                if isinstance(context, ExitStack):
                    context.enter_context(smoothed())
                    context.enter_context(exact())
                z = pixels(3).requires_grad_()
                outputs = model.outputs(z)
            torch.autograd.grad(outputs.sum(), z)  # outside the block, and yet smoothed
    assert (passes.backwards, passes.smoothed) == (9, 3)


def test_counters_nest_and_stop():
    model = SelectiveClassifier(Line(), AcceptAll())
    with count_passes() as outer:
        model(pixels(2, 1))
        with count_passes() as inner:
            model(pixels(3, 1))
    model(pixels(4, 1))
    assert (outer.total, inner.total) == (5, 3)


def test_a_counter_stops_after_an_error():
    def fail():
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), count_passes() as passes:
        fail()
    SelectiveClassifier(Line(), AcceptAll())(pixels(2, 1))
    assert passes.total == 0


def test_counting_changes_no_value_and_no_gradient():
    x = pixels(2, 1).requires_grad_()
    with count_passes() as passes:
        counted = tally(x)
        (gradient,) = torch.autograd.grad((3 * counted).sum(), x)
    assert torch.equal(counted, x)
    assert torch.equal(gradient, torch.full_like(x, 3))
    assert passes.backwards == 2


def test_passes_add():
    both = Passes(1, 2) + Passes(10, 20)
    assert (both.forwards, both.backwards, both.total) == (11, 22, 33)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_outputs_are_watched(bad):
    model = SelectiveClassifier(Line(), AcceptAll())
    with watch_outputs(torch.device("cpu")) as outer:
        model(pixels(2, 1))
        assert not outer.isnan()
        with watch_outputs(torch.device("cpu")) as inner:
            model.base.bias.data[0] = bad
            model.outputs(pixels(2, 1))
    assert inner.isnan()
    assert outer.isnan()
