"""`cpr-wrap demo`: the whole story, in small."""

from __future__ import annotations

import json

import pytest

from cpr_wrap.cli import demo
from cpr_wrap.evaluation import load_result


@pytest.fixture(scope="module")
def contenders():
    """What the first demo calibrated, for all that follow."""
    return []


@pytest.fixture
def small(saved, contenders, monkeypatch):
    """The demo on the linear network."""
    calibrate = demo._contenders
    monkeypatch.setattr(demo, "ADDRESS", f"local:{saved}")
    monkeypatch.setattr(demo, "EPS", 0.05)
    monkeypatch.setattr(
        demo,
        "_contenders",
        lambda *facts: contenders or contenders.extend(calibrate(*facts)) or contenders,
    )


@pytest.mark.integration
def test_the_story_is_told_and_written(small, type_command, tmp_path):
    answer = type_command("demo", "--num", "6")
    assert answer.exit_code == 0, answer.output
    told = answer.stdout
    for text in (
        "set on 1,000 validation images",
        "CPR: cpr (Linf radius 0.0",
        "confidence: confidence (threshold 0.",
        "On 1,000 clean test images:",
        "Attacking the first 6 of them",
        "Robustness with rejection.",
        "Total robust loss",
        "The report: cpr-wrap-demo/report.html",
    ):
        assert text in told
    alphas = [line.split() for line in told.splitlines() if line.strip().startswith("0.05 ")]
    curves = [load_result(tmp_path / "cpr-wrap-demo" / n) for n in ("cpr", "confidence")]
    shares = [f"{100 * curve.accuracy_at(0.05):.1f}%" for curve in curves]
    assert alphas[0][1:3] == shares
    page = (tmp_path / "cpr-wrap-demo" / "report.html").read_text()
    assert "no rejection" in page
    for name in ("cpr", "confidence", "no-rejection"):
        assert type_command("verify", tmp_path / "cpr-wrap-demo" / name).exit_code == 0


@pytest.mark.integration
def test_both_rules_are_calibrated_alike(small, type_command):
    words = ("demo", "-n", "2", "--budget", "tests.budgets:Dark", "--json")
    content = json.loads(type_command(*words).stdout)
    cpr, confidence, none = content["runs"].values()
    for run in (cpr, confidence):
        record = run["calibration"]
        assert (record["reject_rate"], record["num_images"]) == (0.01, 1000)
        assert record["num_rejected"] <= record["num_correct"] // 100
    assert (cpr["rule"]["steps"], cpr["rule"]["step_size"]) == (20, 0.01)
    assert none["calibration"] is None
    assert none["clean_test"]["rejection_rate"] == 0
    assert none["images"] == 2
    # Another demo does not replace this one unasked.
    answer = type_command(*words, "-n", "3")
    assert (answer.exit_code, "holds another run" in answer.stderr) == (1, True)
    assert type_command(*words, "-n", "3", "--overwrite").exit_code == 0


def test_ctrl_c_says_where_the_work_is(small, monkeypatch, type_command):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("cpr_wrap.evaluation.sweep.robustness_curve", interrupted)
    answer = type_command("demo", "-n", "2", "--out", "here")
    assert answer.exit_code == 130
    assert "stopped; finished work is in here/store" in answer.stderr


def test_the_default_is_the_bundled_model_at_the_papers_settings():
    assert (demo.ADDRESS, demo.EPS, demo.REJECT_RATE) == ("bundled:mnist-compact-at", 0.3, 0.01)
