from __future__ import annotations

import pytest

from cpr_wrap.metrics import (
    PAPER_LOSSES,
    RampLoss,
    StepLoss,
    TableLoss,
    as_loss,
    clean_metrics,
)
from cpr_wrap.report.tables import curve_values, loss_text, losses, ranking, traditional, with_bars
from tests.report.making import INF, full_curve, plain


def test_traditional_metrics():
    seen, unseen = full_curve("AT"), full_curve("AT", eps=0.4)
    for curve, row in zip((seen, unseen), traditional([seen, unseen]).rows, strict=True):
        clean = clean_metrics(curve.records)
        assert row[1].text == f"Linf {curve.eps:g}"
        assert [cell.value for cell in row[2:]] == [
            len(curve.records),
            clean.accuracy_with_rejection,
            clean.rejection_rate,
            clean.f1_like,
            clean.robust_accuracy_with_detection,
        ]


def test_all_rejected_has_no_accuracy():
    row = traditional([plain(outer=[INF], rejected=[0.0])]).rows[0]
    assert row[3].text == "–"


def test_curve_and_losses_of_one_curve():
    curve = plain()
    values = curve_values(curve)
    assert [row[2].value for row in values.rows] == [curve.accuracy_at(a) for a in curve.alphas]
    assert [row[1].value for row in values.rows] == [a * curve.eps for a in curve.alphas]
    totals = losses(curve)
    assert [row[1].value for row in totals.rows] == [
        curve.total_robust_loss(loss) for loss in PAPER_LOSSES
    ]
    for table in (values, totals):
        assert "not over attacks" in table.caption
        assert "upper bound" in table.caption


@pytest.mark.parametrize("style", ["text", "markdown", "latex", "csv"])
def test_every_table_in_every_format(style):
    curve = full_curve(count=12)
    for text in (
        ranking([curve])[0][0].render(style),
        traditional([curve]).render(style),
        curve_values(curve).render(style),
        losses(curve).render(style),
    ):
        assert text
        assert not text.endswith("\n")


def test_losses_in_the_papers_symbols():
    assert loss_text(StepLoss(0.05)) == "step α₀ = 0.05"
    assert loss_text(RampLoss(2)) == "ramp t = 2"
    assert loss_text(TableLoss(((0.0, 1.0),))) == "table:0=1"


def test_bars_are_as_long_as_the_shares():
    table = with_bars(curve_values(plain()), width=8)
    lengths = [len(row[-1].text) for row in table.rows]
    assert lengths == [round(8 * row[2].value) for row in table.rows]
    assert (lengths[0], lengths[-1]) == (4, 0)


def test_losses_stand_beside_the_theorems_where_those_apply():
    curve = full_curve()  # Theorem 2 does not apply
    table = losses(curve, theory=True)
    assert [column.title for column in table.columns][3:] == ["Thm. 1"]
    bound = curve.theorems()[0]
    assert [row[3].value for row in table.rows] == [
        bound.total_robust_loss(loss) for loss in PAPER_LOSSES
    ]
    assert len(losses(curve).columns) == 3


def test_losses_whose_names_are_the_same_or_those_of_other_columns_keep_their_columns():
    def images(r):
        return (1 - r).clamp_min(0)

    ((table, _),) = ranking(full_curve(), [as_loss(images), as_loss(images), RampLoss(1)])
    assert [c.title for c in table.columns[:4]] == ["run", "images", "images", "ramp t = 1"]
    assert [c.title for c in table.columns[4:]] == ["audit", "images", "attacks"]
    assert table.rows[0][5].value == 60
