"""`cpr-wrap sweep`: every combination once, resumable, with a tidy table and a leaderboard."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_wrap.cli.commands import Sweep
from cpr_wrap.cli.sweep import planned
from cpr_wrap.evaluation import results
from cpr_wrap.zoo import load_network

FEW = ["--num", "4", "--eps", "0.05", "--budget", "tests.budgets:Dark"]
RULES = ["--rule", "confidence:threshold=0.2", "--rule", "none"]


@pytest.fixture
def swept(type_command, saved):
    def run(*more):
        return type_command("sweep", "--model", f"local:{saved}", *FEW, "--out", "runs", *more)

    return run


def test_every_combination_has_a_folder_a_row_and_a_place_in_the_page(swept, tmp_path):
    answer = swept(*RULES, "--eps", "0.1")
    assert answer.exit_code == 0, answer.output
    found = results(tmp_path / "runs")
    assert len(found) == 4
    with (tmp_path / "runs" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["rule"], row["eps"]) for row in rows} == {
        (rule, eps) for rule in ("confidence", "none") for eps in ("0.05", "0.1")
    }
    assert {row["audit"] for row in rows} == {"not audited"}
    assert [row["n"] for row in rows] == ["4"] * 4
    page = (tmp_path / "runs" / "report.html").read_text()
    assert "none+<wbr>Linf-0.1" in page
    assert "Linf ε = 0.05" in answer.stdout
    again = swept(*RULES, "--eps", "0.1")
    assert again.exit_code == 0
    assert again.stderr.count("done before") == 4


def test_a_file_says_the_same_and_what_is_typed_goes_first(type_command, saved, tmp_path):
    (tmp_path / "plan.toml").write_text(
        f'models = ["local:{saved}"]\nrules = ["none", "confidence:calibrate=0.1"]\n'
        'eps = "1/20"\nbudgets = ["tests.budgets:Dark"]\nnum = 300\n'
    )
    answer = type_command("sweep", "plan.toml", "--num", "3", "--json", "--out", "r")
    assert answer.exit_code == 0, answer.output
    rows = json.loads(answer.stdout)
    assert [(row["n"], row["eps"], row["budget"]) for row in rows] == [(3, 0.05, "dark")] * 2
    calibrated = [curve for curve in results("r") if curve.calibration is not None]
    assert len(calibrated) == 1
    assert calibrated[0].calibration.reject_rate == 0.1


def test_a_folder_with_another_run_is_refused(swept):
    assert swept(*RULES[2:]).exit_code == 0
    answer = swept(*RULES[2:], "--seed", "5")
    assert answer.exit_code == 1
    assert "(other images, weights, settings or engine)" in answer.stderr


def test_another_run_is_replaced_only_if_asked(swept, tmp_path):
    assert swept(*RULES[2:]).exit_code == 0
    answer = swept(*RULES[2:], "--seed", "5", "--overwrite")
    assert answer.exit_code == 0, answer.output
    assert [curve.settings.seed for curve in results(tmp_path / "runs")] == [5]


def test_an_estimate_adds_up(swept, tmp_path):
    answer = swept(*RULES, "--estimate")
    assert answer.exit_code == 0, answer.output
    assert "for 2 runs" in answer.stdout
    assert not (tmp_path / "runs").exists()


def test_a_failed_audit_has_its_exit_code_and_never_a_star(swept, monkeypatch, tmp_path):
    from cpr_wrap.metrics import Check

    failed = (Check(name="c", passed=False, detail="d"),)
    monkeypatch.setattr("cpr_wrap.evaluation.sweep.audit", lambda *_, **__: failed)
    answer = swept(*RULES[2:], "--audit")
    assert answer.exit_code == 3
    assert "failed" in answer.stdout
    assert results(tmp_path / "runs").rows()[0]["audit"] == "failed"


@pytest.mark.parametrize(
    ("text", "words"),
    [("models = [", "plan.toml"), ("modles = []", "unknown 'modles'"), ("eps = 0.1", "--model")],
)
def test_a_plan_that_cannot_be_read(type_command, tmp_path, text, words):
    (tmp_path / "plan.toml").write_text(text)
    answer = type_command("sweep", "plan.toml")
    assert answer.exit_code == 2
    assert words in answer.output


def test_a_plan_names_images_and_folders_as_options_do(tmp_path):
    (tmp_path / "plan.toml").write_text(
        'models = "local:x"\nindices = "3,8-9"\nclass_map = "map.txt"\neps = [0.1, "1/4"]\n'
    )
    found = planned(Sweep(plan=tmp_path / "plan.toml"))
    assert (found.models, found.eps) == (["local:x"], ["0.1", "1/4"])
    assert (found.indices, found.class_map) == ([3, 8, 9], Path("map.txt"))


def test_a_zero_that_was_typed_goes_before_the_plan(tmp_path):
    (tmp_path / "plan.toml").write_text('models = "local:x"\nstart = 5\n')
    assert planned(Sweep(plan=tmp_path / "plan.toml", start=0)).start == 0
    assert planned(Sweep(plan=tmp_path / "plan.toml")).start == 5


def test_a_rule_that_nobody_has_set_is_warned_of(swept):
    answer = swept("--rule", "confidence")
    assert "warning: rule confidence accepts everything at threshold 0" in answer.stderr


def test_without_a_rule_or_norm_a_model_is_judged_as_by_curve(
    swept, type_command, saved, monkeypatch, tmp_path
):
    l2 = replace(load_network(f"local:{saved}"), rule=None, norm="L2")
    for module in ("sweep", "_load"):
        monkeypatch.setattr(f"cpr_wrap.cli.{module}.load_network", lambda *_, **__: l2)
    assert swept().exit_code == 0
    answer = type_command("curve", f"local:{saved}", *FEW, "--out", "runs/curve")
    assert answer.exit_code == 0, answer.output
    made = results(tmp_path / "runs")
    assert len(made) == 2
    assert {curve.settings.rule.config["norm"] for curve in made} == {"L2"}
    assert {curve.records.norm for curve in made} == {"L2"}


def test_two_runs_of_one_name_are_refused(swept):
    answer = swept("--rule", "none", "--rule", "none")
    assert answer.exit_code == 1
    assert "expected runs with different names" in answer.stderr
