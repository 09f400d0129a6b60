"""`verify`, `compare` and `report` read what `curve` wrote."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from cpr_wrap.evaluation import load_result
from cpr_wrap.networks import NETWORKS
from cpr_wrap.report import compare_table, traditional_table


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


def test_what_does_not_hold_is_named_and_exit_code_1(result, type_command, tmp_path):
    index = _forge(result, tmp_path / "forged")
    answer = type_command("verify", "forged")
    assert answer.exit_code == 1
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
    assert answer.exit_code == 1
    assert "the model's weights are not the ones that were evaluated" in answer.stdout


@pytest.mark.parametrize("command", ["verify", "compare", "report"])
def test_what_is_no_result_folder_is_one_line(command, type_command):
    answer = type_command(command, "nowhere")
    assert answer.exit_code == 1
    [line] = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert "nowhere" in line


@pytest.mark.parametrize("layout", ["text", "markdown", "latex", "csv"])
def test_compare_prints_the_table(layout, result, type_command):
    answer = type_command("compare", result, "--format", layout)
    assert answer.stdout == compare_table([result], layout) + "\n"
    answer = type_command("compare", result, "--format", layout, "--full")
    assert answer.stdout == compare_table([result], layout, full=True) + "\n"
    answer = type_command("compare", result, "--format", layout, "--traditional")
    assert answer.stdout == traditional_table([result], layout) + "\n"


def test_compare_writes_a_file_and_json(result, type_command, tmp_path):
    type_command("compare", result, "--format", "csv", "--out", "table.csv")
    assert (tmp_path / "table.csv").read_text() == compare_table([result], "csv") + "\n"
    [row] = json.loads(type_command("compare", result, "--json").stdout)
    assert row["Method"] == "means"
    assert load_result(result).total_robust_loss("step:0") in row.values()


def test_report_writes_one_page(result, type_command, tmp_path):
    answer = type_command("report", result, "--title", "Our runs")
    assert answer.stdout == "written to report.html\n"
    page = (tmp_path / "report.html").read_text()
    assert "Our runs" in page
    assert "means" in page


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
