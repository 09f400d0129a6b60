"""`cpr-wrap advise` from the address to the table and the picture."""

from __future__ import annotations

import json

import pytest
import typer

from cpr_wrap.cli.advise import read_cost
from cpr_wrap.cli.options import seconds

FEW = ["--num", "6", "--eps", "0.05", "--radii", "0.01", "--try-steps", "2", "--thresholds", "0.2"]
FEW += ["--budget", "tests.budgets:Dark", "--screening", "tests.budgets:Dark"]


@pytest.fixture
def advised(type_command, saved):
    def run(*more):
        return type_command("advise", f"local:{saved}", *FEW, *more)

    return run


def test_it_prints_a_table_and_writes_both_files(advised, tmp_path):
    answer = advised("--cost", "ramp:2", "--figure", "a/b.svg", "--table", "a/b.md", "--store", "s")
    assert answer.exit_code == 0, answer.output
    told = " ".join(answer.stdout.split())
    assert "rejection costs ramp:2 and a mistake 1; Linf eps 0.05, budget dark" in told
    for rule in ("none (accepts everything)", "cpr (Linf radius 0.01", "confidence (threshold 0.2"):
        assert rule in answer.stdout
    assert "screening 1 of 4: none" in answer.stderr  # beside those three, verified
    table = (tmp_path / "a" / "b.md").read_text()
    assert table.count("advised") >= 1
    assert "| 6 validation" not in table
    assert (tmp_path / "a" / "b.svg").read_text().startswith("<?xml")


def test_limits_and_a_cost_of_ones_own(advised, tmp_path):
    (tmp_path / "own.py").write_text("def half(r):\n    return 0.5 * (r < 0.01)\n")
    limits = ["--max-clean-rejection", "1/1000", "--max-latency", "30s"]
    answer = advised("--cost", "own.py:half", *limits, "--json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["cost"] == "half"
    rows = {row["rule"].split(" ")[0]: row for row in found["candidates"]}
    assert rows["none"]["status"] in ("advised", "tied")
    assert {row["status"] for row in found["candidates"]} <= {
        "advised", "tied", "beaten", "left out"
    }  # fmt: skip
    assert all(row["clean_rejection"] <= 0.001 or row["why"] for row in found["candidates"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--figure", "x.bmp"), "expected a file that ends in .png, .svg, .pdf"),
        (("--table", "kept.md"), "kept.md exists"),
        (("--try-steps", "2.5"), "expected whole numbers"),
        (("--radii", "a"), "expected a number like 0.03"),
        (("--budget", "quik"), "unknown budget 'quik'"),
        (("--eps", "8"), "did you mean 8/255"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(words, complaint, advised, tmp_path):
    (tmp_path / "kept.md").write_text("precious")
    answer = advised(*words)
    assert answer.exit_code in (1, 2)
    assert complaint in " ".join(answer.stderr.replace("│", " ").split())
    assert "screening" not in answer.stderr


@pytest.mark.parametrize(
    ("text", "value"), [("20ms", 0.02), ("0.5s", 0.5), ("3 us", 3e-6), (" 1s ", 1.0)]
)
def test_times_are_read(text, value):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["20", "fast", "-1ms", "1.2.3s", ""])
def test_other_times_are_refused(text):
    with pytest.raises(typer.BadParameter, match="expected a time like 20ms"):
        seconds(text)


def test_costs_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "price.py").write_text("def flat(r):\n    return 0.25\n")
    assert read_cost("step:0.05").name == "step:0.05"
    assert read_cost("deep/price.py:flat")(0.1) == read_cost("deep.price:flat")(0.1) == 0.25
    with pytest.raises(LookupError, match="unknown rejection loss 'cheap'"):
        read_cost("cheap")
