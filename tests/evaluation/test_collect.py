"""Many results are one table."""

from __future__ import annotations

import pytest

from cpr_wrap import results
from cpr_wrap.evaluation import save_result
from cpr_wrap.metrics import About, RobustnessCurve
from tests.metrics.making import INF, make


@pytest.fixture
def runs(tmp_path):
    for name, broken in (("b/two", 2), ("a", 1), ("b/three", 3)):
        records = make([0.1] * broken + [INF] * (4 - broken), [INF] * 4)
        save_result(RobustnessCurve(records, about=About(name=name)), tmp_path / "runs" / name)
    (tmp_path / "runs" / "a" / "store").mkdir()
    (tmp_path / "runs" / "empty").mkdir()
    return tmp_path / "runs"


@pytest.mark.parametrize("pattern", ["", "/**"])
def test_all_results_below_a_folder_are_found_in_order(runs, pattern):
    frame = results(f"{runs}{pattern}").to_frame(["step:0"])
    assert list(frame["name"]) == ["a", "b/three", "b/two"]
    assert list(frame["step:0"]) == [0.25, 0.75, 0.5]
    assert list(frame["folder"]) == [str(runs / name) for name in frame["name"]]


def test_patterns_and_lists_name_some_each_once(runs):
    assert len(results(f"{runs}/b/*")) == 2
    found = results([runs / "a", f"{runs}/*", runs / "b"])
    assert [curve.about.name for curve in found] == ["a", "b/three", "b/two"]
    assert found.curves[0].points is None


def test_where_there_is_nothing_it_is_said(runs):
    with pytest.raises(FileNotFoundError, match=r"empty: found no result folder, which has a res"):
        results(runs / "empty")
