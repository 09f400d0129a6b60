"""The comparison of certificates: the page quotes it, and table and figure follow from results."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "examples" / "results" / "certificates"
compare: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "certificates" / "compare.py"))


@pytest.fixture(scope="module")
def found() -> list[Any]:
    return compare["results"]()


def test_the_page_quotes_the_generated_tables() -> None:
    page = (ROOT / "docs" / "theory.md").read_text()
    assert (RESULTS / "table.md").read_text().strip() in page


@pytest.mark.integration
def test_the_table_follows_from_the_results(found: list[Any]) -> None:
    assert len(found) >= 14
    parts = [compare["table"](found), compare["stated"](0), compare["crown"](0)]
    assert (RESULTS / "table.md").read_text() == "\n".join(part for part in parts if part)


@pytest.mark.integration
def test_certified_is_below_attacked_and_the_rule_beats_the_bare_network(found: list[Any]) -> None:
    alphas = torch.linspace(0, 1, 101, dtype=torch.float64)
    at_zero: dict[tuple[str, float], float] = {}
    for row, eps, curve in found:
        certified = curve.certificate.accuracy_at(alphas)
        assert bool((certified <= curve.accuracy_at(alphas)).all())
        assert int(curve.records.index.min()) == 1000
        if curve.settings.budget == "quick":
            assert len(curve.records) >= 100
            at_zero[row.name, eps] = float(certified[0])
    for eps in compare["BUDGETS"]:
        ours = at_zero.pop(("ibp, verified consistency", eps))
        assert ours > max(value for (_, other), value in at_zero.items() if other == eps) + 0.5


@pytest.mark.integration
def test_the_band_is_drawn_from_the_results(
    found: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = compare["draw"]
    monkeypatch.setitem(draw.__globals__, "FIGURE", tmp_path / "band.svg")
    draw(found, "ibp, verified consistency")
    fresh, kept = ((p / "band.svg").read_text() for p in (tmp_path, ROOT / "docs" / "img"))
    version = re.compile(r"Matplotlib v[\d.]+")
    assert fresh.count("<path") > 4
    if version.findall(fresh) == version.findall(kept):
        assert fresh == kept
