"""`cpr-wrap calibrate`: a rate asked for, a rule saved."""

from __future__ import annotations

import json

import pytest

from cpr_wrap.zoo import load


def test_the_calibrated_model_is_saved_and_loads(saved, type_command, tmp_path):
    words = ("calibrate", f"local:{saved}", "--rule", "confidence", "--reject-rate", "1/50")
    answer = type_command(*words, "--out", "here", "--json")
    record = json.loads(answer.stdout)
    assert (record["folder"], record["reject_rate"]) == ("here", 0.02)
    assert record["num_rejected"] == int(record["num_correct"] * 0.02)
    rule = load(tmp_path / "here").rule
    assert rule.name == "confidence"
    assert rule.threshold == record["after"]["threshold"]


def test_people_read_before_and_after(saved, type_command):
    words = ("calibrate", f"local:{saved}", "--steps", "4", "--step-size", "0.05", "--out", "here")
    answer = type_command(*words)
    before, after, rates, where = answer.stdout.splitlines()
    assert before == "before: cpr (Linf radius 0.0055, 4 steps of 0.05)"
    assert after.startswith("after:  cpr (Linf radius 0.0")
    assert rates.startswith("rejects ")
    assert "(requested: 1%; on new images " in rates
    assert rates.endswith("of all 1000")
    assert where == "saved to here; load it as local:here"


def test_a_random_network_is_refused(saved, type_command, tmp_path):
    (tmp_path / "noisy.py").write_text(
        "from torch import nn, rand_like\n"
        "class Noisy(nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(nn.Flatten(), nn.Linear(784, 10))\n"
        "    def forward(self, x):\n        return super().forward(x + rand_like(x))\n"
    )
    file = saved / "model.safetensors"
    words = ("calibrate", f"local:{file}", "--network", "noisy:Noisy", "--dataset", "mnist")
    answer = type_command(*words, "--num", "9", "--rule", "confidence")
    assert answer.exit_code == 1
    assert "the network gives different outputs for the same images" in answer.stderr


def test_what_cannot_be_calibrated_is_one_line(saved, type_command):
    answer = type_command("calibrate", f"local:{saved}")
    assert answer.exit_code == 1
    assert answer.stderr.splitlines()[-1].startswith("error: rule 'none' never rejects")


@pytest.mark.parametrize("rate", ["0", "1"])
def test_a_rate_out_of_range_is_one_line(rate, saved, type_command):
    answer = type_command("calibrate", f"local:{saved}", "--rule", "cpr", "--reject-rate", rate)
    assert answer.exit_code == 1
    assert answer.stderr.splitlines()[-1].startswith(
        "error: reject_rate: expected a number between"
    )
