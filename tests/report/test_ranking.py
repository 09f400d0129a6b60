"""Tables rank only what can be compared."""

from __future__ import annotations

from cpr_wrap.report.tables import ranked_rows, ranking
from tests.metrics.test_comparison import audited, run


def test_groups_are_tables_and_stars_stay_inside():
    runs = [
        run(12, name="weak", trained_eps=0.2),
        run(2, name="strong"),
        run(0, name="quick look", budget="glance"),
    ]
    (first, places), (second, others) = ranking(runs)
    assert (places, others) == ([0, 1], [2])
    assert [row[0].text for row in first.rows] == ["weak", "strong"]
    assert [row[1].best for row in first.rows] == [False, True]
    assert not any(cell.best for row in second.rows for cell in row)
    assert first.title == "20 mnist images abc, Linf ε = 0.2, budget quick, engine 3"
    assert "budget glance" in second.title
    titles = [column.title for column in first.columns]
    assert titles[3] == "audit"  # beside the losses
    assert titles[-3:] == ["threat", "images", "attacks"]
    assert [row[-3].text for row in first.rows] == ["seen", "–"]
    assert first.rows[0][3].text == "not audited"


def test_a_failed_audit_is_shown_and_never_starred():
    ((table, _),) = ranking([run(12, name="weak"), audited(run(2, name="strong"), False)])
    assert [row[3].text for row in table.rows] == ["not audited", "failed"]
    assert not any(cell.best for row in table.rows for cell in row)
    assert [column.title for column in table.columns][-3:] == ["audit", "images", "attacks"]


def test_machines_get_group_numbers_and_stars():
    rows = ranked_rows([run(12), run(3, eps=0.4), run(2)])
    assert [row["group"] for row in rows] == [0, 0, 1]
    assert [row["step:0.05_best"] for row in rows] == [False, True, False]


def test_a_leaderboard_starts_with_the_least_loss():
    runs = [run(12, name="weak"), run(2, name="strong"), run(5, name="middle")]
    ((table, places),) = ranking(runs, figures=True)
    assert [row[0].text for row in table.rows] == ["strong", "middle", "weak"]
    assert places == [1, 2, 0]
