"""`cpr-wrap bench`: the figures of the benchmark, asked for and printed."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from cpr_wrap.evaluation import benchmark
from cpr_wrap.evaluation.benchmark import Comparison, Figures
from cpr_wrap.rules import AcceptAll

_FIGURES = Figures(
    forward=2e-6,
    backward=3e-6,
    prediction=1e-3,
    prediction_ratio=1.125,
    images=3,
    batch_size=4,
    threads=1,
    passes_per_image=1234.0,
    seconds=75.0,
    efficiency=0.875,
    cpu_seconds=70.0,
    cpu_efficiency=0.75,
    cpu_prediction_ratio=1.25,
    samples=5,
)
_BOTH = Comparison(
    images=3,
    alphas=(0.0, 1.0),
    ours=(1, 3),
    theirs=(1, 2),
    outer=(1, 0),
    passes_per_image=(1234.0, 56789.0),
    seconds=(75.0, 750.0),
    cpu_seconds=None,
)


@pytest.fixture
def calls(monkeypatch):
    made = {}

    def answering(name, answer):
        def call(model, data, eps, **options):
            made[name] = (model.rule, len(data), eps, options)
            return answer

        monkeypatch.setattr(benchmark, name, call)

    answering("measure", _FIGURES)
    answering("measure_growth", SimpleNamespace(times=5, passes=1.0, cpu=1.02, memory=1.01))
    answering("compare_naive", _BOTH)
    answering("compare_paper", _BOTH)
    return made


def test_the_engine_alone_unless_more_is_asked_for(saved, calls, type_command):
    words = ("bench", f"local:{saved}", "-n", "3", "--batch-size", "4", "--rule", "none")
    lines = type_command(*words).stdout.splitlines()
    assert calls == {"measure": (AcceptAll(), 3, 0.1, {"budget": "quick", "batch_size": 4})}
    assert lines == [
        f"local:{saved}, none (accepts everything), batches of 4",
        "engine:",
        "  forward         2 µs an image",
        "  input gradient  3 µs an image, beside its forward",
        "  prediction      1,000 µs an image, 1.12 times its bare passes (1.25 in processor time)",
        "  budget quick    1,234 passes an image, 1 min 15 s for 3 images",
        "  efficiency      0.88, bare time / time taken (0.75 in processor time)",
    ]


def test_more_when_asked_for(saved, calls, type_command):
    words = ("bench", f"local:{saved}", "-n", "3", "--batch-size", "4", "--eps", "1/4")
    answer = type_command(*words, "--budget", "standard", "--growth", "--naive", "--paper")
    options = {"budget": "standard", "batch_size": 4}
    assert calls == {
        "measure": (AcceptAll(), 3, 0.25, options),
        "measure_growth": (AcceptAll(), 3, 0.25, options),
        "compare_naive": (AcceptAll(), 3, 0.25, {"batch_size": 4}),
        "compare_paper": (AcceptAll(), 3, 0.25, {"batch_size": 4}),
    }
    for line in (
        "  passes          1.000 times as many",
        "standard beside naive:",
        "standard beside paper:",
        "  errors at alpha  0: 1 and 1, 1: 3 and 2; of 3",
        "  passes an image  1,234 and 56,789",
        "  time             1 min 15 s and 12 min 30 s",
        "  no fewer errors  yes",
    ):
        assert line in answer.stdout.splitlines()


def test_json(saved, calls, type_command):
    words = ("bench", f"local:{saved}", "-n", "3", "--naive", "--json")
    content = json.loads(type_command(*words).stdout)
    assert content["engine"]["efficiency"] == 0.875
    assert content["naive"]["theirs"] == [1, 2]
    assert content["rule"] == {"name": "none", "threshold": 0.0}


def test_a_real_measurement(saved, type_command):
    words = ("bench", f"local:{saved}", "-n", "3", "--batch-size", "4", "--rule", "none", "--json")
    content = json.loads(type_command(*words).stdout)
    assert content["engine"]["images"] == 3
    assert content["engine"]["efficiency"] > 0
