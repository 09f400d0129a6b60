"""`cpr-wrap bench`: the figures of the benchmark, asked for and printed."""

from __future__ import annotations

import json

import pytest

from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.evaluation import benchmark
from cpr_wrap.evaluation.benchmark import Figures
from cpr_wrap.rules import AcceptAll

_FIGURES = Figures(
    forward=2e-6,
    backward=3e-6,
    smoothed=30e-6,
    prediction=1e-3,
    prediction_ratio=1.125,
    images=3,
    batch_size=4,
    threads=1,
    passes_per_image=1234.0,
    seconds=75.0,
    smoothed_share=0.25,
    efficiency=0.875,
    cpu_seconds=70.0,
    cpu_efficiency=0.75,
    cpu_prediction_ratio=1.25,
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
    return made


def test_figures_are_asked_for_and_printed(saved, calls, type_command):
    words = ("bench", f"local:{saved}", "-n", "3", "--batch-size", "4", "--rule", "none")
    lines = type_command(*words).stdout.splitlines()
    assert calls == {
        "measure": (
            AcceptAll(),
            3,
            0.1,
            {"budget": BUDGETS["quick"], "batch_size": 4, "norm": "Linf"},
        )
    }
    assert lines == [
        f"local:{saved}, none (accepts everything), batches of 4",
        "engine:",
        "  forward         2 µs per image",
        "  input gradient  3 µs per image, without its forward (30 µs smoothed)",
        "  prediction      1,000 µs per image, 1.12 times its bare passes (1.25 in processor time)",
        "  budget quick    1,234 passes per image, 1 min 15 s for 3 images",
        "  efficiency      0.88, bare time / time taken (0.75 in processor time)",
    ]


def test_json(saved, calls, type_command):
    words = ("bench", f"local:{saved}", "-n", "3", "--json")
    content = json.loads(type_command(*words).stdout)
    assert content["engine"]["efficiency"] == 0.875
    assert content["rule"] == {"name": "none", "threshold": 0.0}


def test_a_real_measurement(saved, type_command):
    words = ("bench", f"local:{saved}", "-n", "3", "--batch-size", "4", "--rule", "none", "--json")
    words += ("--budget", "tests.budgets:Dark")
    content = json.loads(type_command(*words).stdout)
    assert content["engine"]["images"] == 3
    assert content["engine"]["efficiency"] > 0
