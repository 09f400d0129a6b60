"""The study: a plan that is kept, claims that are computed, a page made of results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.metrics.comparison import Difference
from examples.study import claims, page, run
from examples.study.before import Before
from examples.study.cells import MAIN, cells
from tests.metrics.making import INF, make


def curve(broken: int, count: int = 40, rejected: float = INF):
    """A curve of which the first images are broken, and the others rejected at one distance."""
    kept = count - broken
    return RobustnessCurve(
        make([0.2] * broken + [INF] * kept, [INF] * broken + [rejected] * kept, eps=0.4)
    )


def test_every_cell_has_a_folder_of_its_own_and_the_plan_names_its_numbers():
    names = [f"{cell.stage}/{cell.name}" for cell in cells()]
    assert len(set(names)) == len(names)
    assert {"main/verified-0.4", "former/ccat-0.3-former-standard", "cifar10/at-8-255"} <= set(
        names
    )
    plan = (run.PUBLISHED / "plan.md").read_text()
    main = [cell for cell in cells() if cell.stage == "main"]
    assert f"({main[0].num} images;" in plan
    assert f"images {main[0].start} to {main[0].start + main[0].num - 1}" in plan
    assert all(cell.audited for cell in main)
    assert len(main) == 2 * len(MAIN)


def test_every_compared_result_is_a_cell_of_the_study():
    names = {f"{cell.stage}/{cell.name}" for cell in cells()}
    for each in claims.comparisons():
        assert {*each.first, *each.second} <= names


def test_claims_are_decided_by_tests_after_a_correction_for_all_of_them():
    results = {f"main/{name}-0.4": curve(40) for name in claims.BASELINES}
    results |= {"main/at-cpr-0.4": curve(2), "main/trades-cpr-0.4": curve(30)}
    tests = claims.tested(results)
    assert claims.verdict("2", tests) == "holds"
    assert claims.verdict("1", tests) == "not run"
    worse = {**results, "main/at-cpr-0.4": curve(38), "main/trades-cpr-0.4": curve(38)}
    assert claims.verdict("2", claims.tested(worse)) == "undecided"
    best = {**results, "main/ccat-0.4": curve(0), "main/at-cpr-0.4": curve(38)}
    assert claims.verdict("2", claims.tested(best)) == "does not hold"


def test_holms_correction_counts_every_test_of_the_plan(monkeypatch):
    chances = iter([0.001, 0.0012, 0.02] + [1.0] * 100)
    monkeypatch.setattr(
        claims.Comparison,
        "measure",
        lambda self, results: Difference(gap=-0.1, chance=next(chances), images=9),
    )
    tests = claims.tested({})
    # 0.05 / 35 = 0.00143 and 0.05 / 34 = 0.00147; the third one would have to be below 0.00152.
    assert len(tests) == 35
    assert [test.beyond_chance for test in tests[:4]] == [True, True, False, False]


def test_tables_are_filled_in_and_what_was_not_run_is_said():
    results = {"main/at-cpr-0.4": curve(10, rejected=0.1), "main/at-0.4": curve(40)}
    text = "Words.\n<!-- study: main-unseen -->\nold\n<!-- study: end -->\nMore."
    made = page.filled(text, results)
    assert made.startswith("Words.")
    assert made.endswith("More.")
    assert "old" not in made
    row = next(line for line in made.splitlines() if line.startswith("| AT+CPR "))
    assert "75.0 % (59–87)" in row
    assert "90.4 %" in row  # the paper's
    assert "| not run" in made
    assert page.filled(made, results) == made
    for table in page.TABLES.values():
        assert table(results)


def test_another_budget_is_compared_on_its_own_images():
    few = curve(5, count=20)
    results = {"main/at-cpr-0.4": curve(10), "former/at-cpr-0.4-former-standard": few}
    row = page.TABLES["former"](results).splitlines()[2]
    assert [cell.strip() for cell in row.split("|")[1:5]] == ["AT+CPR, 0.4", "20", "10", "15"]


@pytest.mark.integration
def test_the_page_is_made_of_the_published_results():
    text = page.PAGE.read_text()
    assert page.filled(text, page.read()) == text
    assert {name for _, name, _, _ in page._BLOCK.findall(text)} == set(page.TABLES)


@pytest.mark.slow
def test_a_cell_is_run_published_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "PUBLISHED", tmp_path / "published")
    few = [replace(c, num=2, audited=False) for c in cells() if c.name == "ccat-0.4"]
    monkeypatch.setattr(run, "cells", lambda: few)
    monkeypatch.setattr("sys.argv", ["run", "--work", str(tmp_path / "work")])
    run.main()
    assert "main/ccat-0.4:" in capsys.readouterr().out
    (published,) = page.read(tmp_path / "published").values()
    assert published.points is None
    assert published.records.index.tolist() == [200, 201]
    run.main()
    assert capsys.readouterr().out == ""


def test_the_former_standard_has_neither_donors_nor_smoothed_gradients():
    for method in (MAIN[0], MAIN[2]):
        rule = method.model().rule
        text = repr(Before().stages(rule, 0.4))
        assert "Donor" not in text
        assert "smoothed" not in text
        assert "NearMisses" not in text
