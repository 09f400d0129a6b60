"""What is drawn and written of an advice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpr_wrap.evaluation.advice import ADVISED, BEATEN, LEFT_OUT, TIED, Advice, Candidate
from cpr_wrap.metrics import RobustnessCurve, StepLoss
from cpr_wrap.report.advice import advice_figure, advice_table
from cpr_wrap.rules import AcceptAll, Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier
from tests.metrics.making import INF, make
from tests.toys import Line


def candidate(rule, status, broken=None, **more):
    curve = (
        None
        if broken is None
        else RobustnessCurve(make([0.1] * broken + [INF] * 8, [INF] * (broken + 8)))
    )
    return Candidate(
        model=SelectiveClassifier(Line(), rule), clean_rejection=0.02, latency=0.004,
        curve=curve, status=status, **more,
    )  # fmt: skip


@pytest.fixture
def advice():
    best = candidate(Consistency(radius=0.1, steps=5), ADVISED, 2, full=True)
    best.reported = best.curve
    return Advice(
        candidates=(
            best,
            candidate(Consistency(radius=0.2, steps=5), TIED, 2, full=True),
            candidate(Confidence(threshold=0.9), BEATEN, 8),
            candidate(AcceptAll(), LEFT_OUT, why="takes 9 ms"),
        ),
        cost=StepLoss(0.05), eps=0.2, norm="Linf", budget="quick", images=(10, 10),
    )  # fmt: skip


def test_every_candidate_has_a_row_with_its_verdict(advice):
    text = advice_table(advice).render("markdown")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row.split("|")[-2].strip() for row in rows] == [
        "advised", "tied", "beaten", "left out: takes 9 ms"
    ]  # fmt: skip
    assert "0.200 (" in rows[0]
    assert "≥ 0.500 (" in rows[2]
    assert rows[3].count("–") >= 2
    assert "2.0%" in rows[0]
    assert "| 4 |" in " ".join(rows[0].split())


def test_only_a_loss_beyond_chance_is_marked_best(advice):
    assert "* best" not in advice_table(advice).render("text")
    alone = replace(advice, candidates=(advice.candidates[0], *advice.candidates[2:]))
    assert "* best" in advice_table(alone).render("text")


def test_the_picture_has_a_mark_for_each_that_was_tried(advice):
    pytest.importorskip("matplotlib")
    figure = advice_figure(advice)
    (axes,) = figure.axes
    assert len(axes.containers) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "cpr, 5 steps", "confidence"
    ]  # fmt: skip
    heights = [float(bar.lines[0].get_ydata()[0]) for bar in axes.containers]
    assert torch.tensor(heights).allclose(torch.tensor([0.2, 0.2, 0.5]))
