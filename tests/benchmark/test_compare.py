"""Figures about the engine."""

from __future__ import annotations

import pytest

from cpr_wrap import load, load_data
from cpr_wrap.attacks.paper import PAPER_ALPHAS, Paper
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.evaluation.benchmark import measure
from cpr_wrap.meter import count_passes
from examples.benchmark import compare
from examples.benchmark.compare import (
    Comparison,
    Growth,
    compare_naive,
    compare_paper,
    measure_growth,
)
from examples.benchmark.footprint import Footprint
from examples.benchmark.naive import NaiveLoop
from tests.evaluation.test_curve import make
from tests.evaluation.test_timing import images

SETTING = {"rule": "cpr", "radius": 0.1, "steps": 20, "step_size": 0.01}


def print_of(images: int, **change) -> Footprint:
    sizes = {"inputs": 10 * images, "results": 20 * images, "before": 1000}
    peak = 1000 + 30 * images + change.get("working", 500)
    return Footprint(
        images=images,
        passes=change.get("passes", 700 * images),
        seconds=2.0 * images,
        cpu_seconds=change.get("cpu", 1.0 * images),
        peak=peak,
        **sizes,
    )


def test_growth_is_relative_to_as_many_copies():
    steady = Growth(times=5, once=print_of(4), often=print_of(20))
    assert (steady.passes, steady.cpu, steady.memory) == (1, 1, 1)
    more = print_of(20, passes=700 * 30, cpu=40.0, working=1000)
    assert (Growth(times=5, once=print_of(4), often=more).passes) == 1.5
    assert (Growth(times=5, once=print_of(4), often=more).cpu) == 2
    assert (Growth(times=5, once=print_of(4), often=more).memory) == 2


def test_growth_is_measured_once_and_several_times_over(monkeypatch):
    asked = []

    def measured(model, x, y, eps, *, times, budget, batch_size, block_size):
        asked.append((times, budget, batch_size, block_size))
        return print_of(len(x) * times)

    monkeypatch.setattr(compare, "footprint", measured)
    model, x, y = make("cpr", count=2)
    found = measure_growth(model, images(x, y), 0.1, times=3, batch_size=8)
    assert asked == [(1, "quick", 8, 2), (3, "quick", 8, 2)]
    assert (found.times, found.once.images, found.often.images) == (3, 2, 6)


@pytest.mark.integration
def test_the_naive_loop_beside_standard():
    model, x, y = make("cpr", count=1)
    loop = NaiveLoop(steps=2)
    with count_passes() as passes:
        found = compare_naive(model, images(x, y), 0.1, naive=loop, batch_size=8)
    curve = robustness_curve(model, x, y, 0.1, batch_size=8)
    naive = loop.errors(model, x, y, 0.1)
    assert found.ours == tuple(round(curve.error_at(a)) for a in PAPER_ALPHAS)
    assert found.theirs == tuple(naive.at_alphas.sum(dim=1).tolist())
    assert found.outer == (int(curve.records.outer_broken.sum()), int(naive.broken.sum()))
    assert found.passes_per_image[0] == curve.passes_per_image
    assert sum(found.passes_per_image) == passes.total
    assert min(*found.seconds, *found.cpu_seconds) > 0


@pytest.mark.integration
def test_the_papers_protocol_beside_standard_resumes(tmp_path):
    model, x, y = make("cpr", count=2)
    plan = Paper(steps=2, random_starts=0, step_sizes=(0.03,), autoattack=None)
    options = {"paper": plan, "store": tmp_path, "batch_size": 8, "block_size": 1}
    first = compare_paper(model, images(x, y), 0.1, **options)
    again = compare_paper(model, images(x, y), 0.1, **options)
    assert again == first  # to the second: times are kept with the work
    theirs = robustness_curve(model, x, y, 0.1, budget=plan, batch_size=8, block_size=1)
    assert first.theirs == tuple(round(2 * theirs.error_at(a)) for a in PAPER_ALPHAS)
    assert first.cpu_seconds is None


@pytest.mark.parametrize(
    ("ours", "outer", "answer"),
    [((1, 2), (0, 0), True), ((1, 3), (1, 0), True), ((1, 1), (0, 0), False),
     ((2, 3), (0, 1), False)],
)  # fmt: skip
def test_no_fewer_errors_means_at_every_alpha_and_outside(ours, outer, answer):
    found = Comparison(
        images=4,
        alphas=(0.0, 1.0),
        ours=ours,
        theirs=(1, 2),
        outer=outer,
        passes_per_image=(1.0, 1.0),
        seconds=(1.0, 1.0),
        cpu_seconds=None,
    )
    assert found.no_fewer is answer


@pytest.mark.slow
def test_the_bundled_model_is_evaluated_at_the_promised_cost():
    model, data = load("bundled:mnist-compact-at", **SETTING), load_data("mnist", "robust", num=100)
    found = measure(model, data, 0.3, budget="standard", batch_size=128)
    # In processor time: the machine that runs tests may be busy.
    assert found.cpu_efficiency >= 0.85
    assert found.cpu_prediction_ratio <= 1.10
    assert found.passes_per_image <= 10_000
    quick = robustness_curve(model, data.images, data.labels, 0.3, budget="quick", batch_size=128)
    assert quick.passes_per_image <= 1_000
