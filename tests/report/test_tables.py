from __future__ import annotations

import pytest

from cpr_wrap.metrics import PAPER_LOSSES, clean_metrics
from cpr_wrap.report.tables import (
    TABLE_1_LOSSES,
    compare_table,
    comparison,
    curve_table,
    curve_values,
    losses,
    losses_table,
    traditional,
    traditional_table,
)
from tests.report.making import INF, full_curve, plain


def texts(row):
    return [cell.text for cell in row]


def test_table_1_by_hand():
    """Four images: rejected at 1/4 and at all of eps, one accepted mistake, one clean mistake."""
    table = comparison([plain(name="AT+CPR")])
    assert [column.title for column in table.columns] == [
        "Method",
        "α₀ = 0",
        "α₀ = 0.05",
        "α₀ = 0.1",
        "t = 2",
        "t = 4",
    ]
    ramp2 = (2 + 0.75**2) / 4
    ramp4 = (2 + 0.75**4) / 4
    assert texts(table.rows[0]) == ["AT+CPR", *["0.500"] * 3, f"{ramp2:.3f}", f"{ramp4:.3f}"]


def test_the_full_table_has_all_losses_of_the_paper():
    curve = full_curve()
    (row,) = comparison([curve], full=True).rows
    assert [cell.value for cell in row[1:]] == [curve.total_robust_loss(x) for x in PAPER_LOSSES]


def test_two_budgets_of_a_method_are_seen_and_unseen_in_one_row():
    seen, unseen, other = full_curve("AT"), full_curve("AT", eps=0.4), full_curve("CR", seed=1)
    table = comparison([unseen, other, seen])
    assert [row[0].text for row in table.rows] == ["AT", "CR"]
    count = len(TABLE_1_LOSSES)
    assert {c.above for c in table.columns[1 : 1 + count]} == {"Seen attacks (Linf ε = 0.3)"}
    assert {c.above for c in table.columns[1 + count :]} == {"Unseen attacks (Linf ε = 0.4)"}
    at, cr = table.rows
    assert at[1].value == seen.total_robust_loss("step:0")
    assert at[1 + count].value == unseen.total_robust_loss("step:0")
    assert texts(cr[1 + count :]) == ["–"] * count


def test_one_budget_is_neither_seen_nor_unseen():
    columns = comparison([full_curve()]).columns
    assert {column.above for column in columns[1:]} == {"Linf ε = 0.3"}
    assert columns[1].flat == "step α₀ = 0"


def test_three_budgets_are_told_apart_by_eps():
    columns = comparison([full_curve(eps=eps) for eps in (0.2, 0.3, 0.4)]).columns
    assert [c.flat for c in columns[1::5]] == [
        f"Linf ε = {eps} step α₀ = 0" for eps in ("0.2", "0.3", "0.4")
    ]


def test_data_sets_stand_together_and_have_their_own_best():
    runs = [
        full_curve("AT"),
        full_curve("AT", dataset="svhn", weakness=2, eps=0.2),
        full_curve("CR", weakness=2, seed=1),
        full_curve("CR", dataset="svhn", weakness=3, seed=1, eps=0.2),
    ]
    table = comparison(runs)
    assert [texts(row)[:2] for row in table.rows] == [
        ["mnist", "AT"],
        ["mnist", "CR"],
        ["svhn", "AT"],
        ["svhn", "CR"],
    ]
    assert [row[2].best for row in table.rows] == [True, False, True, False]
    assert {column.above for column in table.columns[2:]} == {"Attacks"}


def test_two_runs_of_a_method_at_one_budget_are_refused():
    with pytest.raises(ValueError, match=r"got two called 'AT' at Linf 0\.3; give them"):
        comparison([full_curve("AT"), full_curve("AT", seed=1)])


def test_traditional_metrics():
    seen, unseen = full_curve("AT"), full_curve("AT", eps=0.4)
    row = traditional([seen, unseen]).rows[0]
    clean = clean_metrics(seen.records)
    assert [cell.value for cell in row[1:]] == [
        clean.accuracy_with_rejection,
        clean.rejection_rate,
        clean.f1_like,
        clean.robust_accuracy_with_detection,
        clean_metrics(unseen.records).robust_accuracy_with_detection,
    ]


def test_best_of_the_traditional_metrics_goes_by_the_arrow():
    rejecting = plain(outer=[INF] * 2, rejected=[0.0, INF], name="a")
    mistaken = plain(outer=[0.0, INF], rejected=[INF, INF], name="b")
    first, second = traditional([rejecting, mistaken]).rows
    # Accuracy with rejection up, rejection rate down.
    assert [cell.best for cell in first[1:3]] == [True, False]
    assert [cell.best for cell in second[1:3]] == [False, True]


def test_all_rejected_has_no_accuracy():
    row = traditional([plain(outer=[INF], rejected=[0.0])]).rows[0]
    assert row[1].text == "–"


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
        compare_table([curve], style),
        traditional_table([curve], style),
        curve_table(curve, style),
        losses_table(curve, style),
    ):
        assert text
        assert not text.endswith("\n")
