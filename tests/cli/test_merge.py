"""Points and runs from elsewhere, on the command line."""

from __future__ import annotations

import json
import shutil

import numpy as np
import torch

from cpr_wrap.evaluation import load_result


def curve_words(saved, *more):
    words = ["curve", f"local:{saved}", "--num", "8", "--rule", "confidence", "--threshold", "0.8"]
    return [*words, *more]


def test_points_of_a_file_are_judged(saved, result, type_command, tmp_path):
    found = load_result(result)
    turned = found.records.rejected_radius.isfinite() & (found.records.rejected_radius > 0)
    held = {"index": found.records.index[turned], "points": found.points.rejected[turned]}
    np.savez(tmp_path / "points.npz", **{name: value.numpy() for name, value in held.items()})
    words = ["--eps", "0.05", "--budget", "quick", "--points", "points.npz", "--out", "again"]
    answer = type_command(*curve_words(saved, *words))
    assert answer.exit_code == 0, answer.output
    again = load_result(tmp_path / "again")
    assert turned.any()
    (stage,) = [stage for stage in again.passes if stage.attack == "given points"]
    assert stage.found_rejected == int(turned.sum())
    assert (again.records.rejected_radius <= found.records.rejected_radius).all()


def test_a_file_without_points_is_said(saved, type_command, tmp_path):
    np.savez(tmp_path / "none.npz", index=np.zeros(0, int), points=np.zeros((0, 1, 28, 28)))
    words = ["--eps", "0.05", "--budget", "quick", "--points", "none.npz", "--store", "store"]
    answer = type_command(*curve_words(saved, *words))
    assert answer.exit_code == 0, answer.output
    assert "points: none are given" in answer.stderr


def test_runs_are_merged_and_a_smaller_eps_hands_its_points_on(
    saved, result, type_command, tmp_path
):
    words = ["--eps", "0.06", "--budget", "quick", "--seed", "5", "--out", "larger"]
    assert type_command(*curve_words(saved, *words)).exit_code == 0
    answer = type_command("merge", result, "larger", "--out", "both")
    assert answer.exit_code == 0, answer.output
    both, larger, smaller = (
        load_result(f) for f in (tmp_path / "both", tmp_path / "larger", result)
    )
    assert both.eps == 0.06
    least = torch.minimum(larger.records.rejected_radius, smaller.records.rejected_radius)
    assert torch.equal(both.records.rejected_radius, least)
    assert both.provenance.merged == ("small", "larger")
    assert type_command("verify", "both").exit_code == 0
    assert "the lowest of the runs alone" in answer.stdout
    least = type_command("merge", result, "larger", "--out", "least", "--eps", "0.01")
    assert "the lowest of the runs alone" not in least.stdout  # none was run within it


def test_runs_of_one_name_are_told_apart(result, type_command, tmp_path):
    shutil.copytree(result, tmp_path / "there" / "small")
    answer = type_command("merge", result, "there/small", "--out", "both", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["folder"] == "both"
    assert load_result(tmp_path / "both").provenance.merged == (str(result), "there/small")
