"""`verify`, `compare` and `report` read what `curve` wrote."""

from __future__ import annotations

import csv
import json
import os
import shutil

import pytest
import torch

from cpr_wrap.evaluation import load_result
from cpr_wrap.networks import NETWORKS
from cpr_wrap.report import traditional
from cpr_wrap.report.tables import ranking


def test_a_true_result_holds(result, type_command):
    answer = type_command("verify", result)
    assert answer.exit_code == 0
    assert answer.stdout.endswith("recorded inputs checked: everything holds\n")


def _forge(result, folder):
    """A copy in which an image that was answered right is said to be answered otherwise."""
    shutil.copytree(result, folder)
    file = folder / "per_image.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    row = next(row for row in rows if row["clean_label"] == row["label"])
    row["label"] = row["clean_label"] = (row["label"] + 1) % 10
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return row["index"]


def test_what_does_not_hold_is_named_and_exit_code_3(result, type_command, tmp_path):
    index = _forge(result, tmp_path / "forged")
    answer = type_command("verify", "forged")
    assert answer.exit_code == 3
    assert f"image {index}: clean answer" in answer.stdout
    assert "not hold" in answer.stdout.splitlines()[-1]
    content = json.loads(type_command("verify", "forged", "--json").stdout)
    assert content["holds"] is False
    assert any(f"image {index}" in problem for problem in content["problems"])


def test_the_model_may_have_moved(result, saved, type_command, tmp_path):
    shutil.copytree(saved, tmp_path / "elsewhere")
    answer = type_command("verify", result, "--model", "local:elsewhere")
    assert answer.exit_code == 0, answer.output


def test_another_model_is_noticed(result, saved, type_command, tmp_path):
    network = NETWORKS["nearest-mean"]()
    torch.save(network.state_dict(), tmp_path / "other.pt")
    words = ("--model", "local:other.pt", "--network", "nearest-mean")
    answer = type_command("verify", result, *words)
    assert answer.exit_code == 3
    assert "the model's weights are not the ones that were evaluated" in answer.stdout


@pytest.mark.parametrize("command", ["verify", "compare", "report"])
def test_what_is_no_result_folder_is_one_line(command, type_command):
    answer = type_command(command, "nowhere")
    assert answer.exit_code == 1
    [line] = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert "nowhere" in line


@pytest.mark.parametrize("layout", ["text", "markdown", "latex"])
def test_compare_prints_the_tables(layout, result, type_command):
    answer = type_command("compare", result, "--format", layout)
    assert answer.stdout == ranking([result])[0][0].render(layout) + "\n"
    answer = type_command("compare", result, "--format", layout, "--traditional")
    assert answer.stdout == traditional([result]).render(layout) + "\n"


def test_compare_has_the_same_ascii_keys_in_csv_and_json(result, type_command, tmp_path):
    type_command("compare", result, "--format", "csv", "--loss", "step:0", "--out", "table.csv")
    with (tmp_path / "table.csv").open() as file:
        [line] = csv.DictReader(file)
    [row] = json.loads(type_command("compare", result, "--loss", "step:0", "--json").stdout)
    assert list(line) == list(row)
    assert all(key.isascii() for key in row)
    assert (row["name"], row["group"], row["audit"]) == ("means", 0, "not audited")
    assert row["step:0"] == load_result(result).total_robust_loss("step:0")
    assert row["step:0_best"] is False
    [row] = json.loads(type_command("compare", result, "--full", "--json").stdout)
    assert {"step:0.2", "ramp:4"} <= set(row)


def test_report_writes_one_page(result, type_command, tmp_path):
    answer = type_command("report", result, "--title", "Our runs")
    assert answer.stdout == "written to report.html\n"
    page = (tmp_path / "report.html").read_text()
    assert "Our runs" in page
    assert "means" in page


def test_folders_of_results_and_patterns_are_taken(result, type_command, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(result, tmp_path / "runs" / "deep" / name)
    for command in ("report", "compare"):
        for where in ("runs", "runs/**", "runs/deep/*"):
            answer = type_command(command, where, *(("--overwrite",) * (command == "report")))
            assert answer.exit_code == 0, answer.output
    assert "2 selective classifiers" in (tmp_path / "report.html").read_text()
    assert type_command("merge", "runs", "--out", "both").exit_code == 0
    assert load_result(tmp_path / "both").provenance.merged == ("a", "b")


def test_report_writes_for_papers_and_for_robustbench(result, type_command):
    words = ("--out", "out/r.html", "--figure", "curves.svg", "--robustbench", "info", "--json")
    written = json.loads(type_command("report", result, *words).stdout)["written"]
    assert written == [
        "out/r.html",
        "curves.svg",
        "info/mnist/Linf/means.json",
        "info/mnist/Linf/means.pt",
    ]
    assert torch.load(written[3], weights_only=True).shape == (8, 1, 28, 28)


def test_nothing_is_overwritten_silently(result, type_command, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(result, tmp_path / "runs" / name)
    for words, file in (
        (("report", "runs/a", "--out", "r.html"), "r.html"),
        (("report", "runs/a", "--out", "s.html", "--figure", "f.svg"), "f.svg"),
        (("merge", "runs/a", "runs/b", "--out", "m"), "m/result.json"),
        (("compare", "runs/a", "--out", "table.txt"), "table.txt"),
        (("report", "runs/a", "--out", "t.html", "--robustbench", "i"), "i/mnist/Linf/means.json"),
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).write_text("precious")
        answer = type_command(*words)
        assert answer.exit_code == 2, answer.output
        assert "pass --overwrite" in answer.stderr
        assert (tmp_path / file).read_text() == "precious"
        assert type_command(*words, "--overwrite").exit_code == 0
        assert (tmp_path / file).read_text() != "precious"


def test_a_figure_that_nobody_can_draw_leaves_the_report_alone(result, type_command, tmp_path):
    (tmp_path / "r.html").write_text("precious")
    words = ("--out", "r.html", "--figure", "x.bmp", "--overwrite")
    answer = type_command("report", result, *words)
    assert answer.exit_code == 1
    assert "bmp" in answer.stderr
    assert (tmp_path / "r.html").read_text() == "precious"


def test_results_are_readable_by_the_group(result):
    modes = {file.stat().st_mode & 0o777 for file in result.rglob("*") if file.is_file()}
    assert modes == {0o666 & ~_umask()}


def _umask():
    before = os.umask(0)
    os.umask(before)
    return before
