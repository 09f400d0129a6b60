"""Only like is ranked with like."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpr_wrap.metrics import About, Check, Provenance, RobustnessCurve, RuleFacts, Settings
from cpr_wrap.metrics.comparison import (
    attacks_of,
    audit_status,
    ground_of,
    grouped,
    seen_status,
    starred,
    tidy_row,
)

from .making import INF, make

LOSS = "step:0.05"


def run(broken, count=20, *, eps=0.2, norm="Linf", budget="quick", engine=3, data="abc", **about):
    """A run of `count` images of which the first `broken` have an accepted mistake."""
    outer = [0.1] * broken + [INF] * (count - broken)
    settings = Settings(
        budget=budget, rule=RuleFacts(name="cpr", text="cpr (radius 0.1)"), eps=eps, norm=norm,
        seed=0, batch_size=8, block_size=8,
    )  # fmt: skip
    return RobustnessCurve(
        make(outer, [INF] * count, eps=eps, norm=norm),
        settings=settings,
        provenance=Provenance(versions={}, engine=engine, weights="w", data=data, seconds=2.5),
        about=About(dataset="mnist", **about),
    )


def audited(curve, passed):
    return replace(curve, checks=(Check(name="c", passed=passed, detail=""),))


@pytest.mark.parametrize(
    "other",
    [
        run(2, data="other"),
        run(2, count=19),
        run(2, eps=0.25),
        run(2, norm="L2"),
        run(2, budget="standard"),
        run(2, engine=4),
    ],
)
def test_other_images_numbers_threats_budgets_and_engines_are_other_groups(other):
    curves = [run(12), run(2), other]
    assert grouped(curves) == [[0, 1], [2]]
    assert starred(curves, LOSS) == {1}
    assert starred([run(12), other], LOSS) == set()


def test_a_budget_that_went_through_float32_is_the_same():
    assert ground_of(run(1, eps=0.2)) == ground_of(run(1, eps=float(torch.tensor(0.2))))


def test_a_star_needs_a_difference_beyond_chance():
    assert starred([run(7), run(2)], LOSS) == set()  # 5 images: p = 1 / 16
    assert starred([run(8), run(2)], LOSS) == {1}  # 6 images: p = 1 / 32
    assert starred([run(8), run(2), run(3)], LOSS) == set()


def test_a_run_whose_audit_failed_is_never_starred():
    best = audited(run(2), False)
    assert audit_status(best) == "failed"
    assert starred([run(9), best], LOSS) == set()
    assert starred([run(9), best, run(18)], LOSS) == {0}
    assert starred([run(9), audited(run(2), True)], LOSS) == {1}
    assert audit_status(run(9)) == "not audited"


def test_given_points_and_joined_runs_are_other_budgets():
    given = run(2)
    given = replace(given, settings=replace(given.settings, stages=("GivenPoints(3 points, ab)",)))
    assert attacks_of(given) == "quick + given points"
    merged = run(2, budget="merged")
    merged = replace(merged, provenance=replace(merged.provenance, merged=("a", "b")))
    assert attacks_of(merged) == "merged from 2"
    assert attacks_of(RobustnessCurve(make([INF], [INF]))) == ""


@pytest.mark.parametrize(("trained", "word"), [(0.2, "seen"), (0.1, "unseen"), (None, "")])
def test_seen_is_said_only_where_the_training_is_known(trained, word):
    assert seen_status(run(1, trained_eps=trained)) == word


def test_rows_have_plain_ascii_keys():
    row = tidy_row(audited(run(5, name="AT", model="bundled:x"), True), [LOSS, "ramp:2"])
    assert list(row) == [
        "name", "model", "rule", "settings", "dataset", "norm", "eps", "seen", "n", "images",
        "budget", "engine", "clean_accuracy", "clean_rejection", "robust_error", "step:0.05",
        "step:0.05_low", "step:0.05_high", "ramp:2", "ramp:2_low", "ramp:2_high", "passes",
        "seconds", "audit",
    ]  # fmt: skip
    assert all(key.isascii() for key in row)
    assert (row["n"], row["step:0.05"], row["audit"], row["images"]) == (20, 0.25, "passed", "abc")
    assert row["step:0.05_low"] < 0.25 < row["step:0.05_high"]


def test_records_from_elsewhere_are_compared_by_their_numbers():
    plain = [
        RobustnessCurve(make([0.1] * 9, [INF] * 9)),
        RobustnessCurve(make([INF] * 9, [INF] * 9)),
    ]
    assert starred(plain, LOSS) == {1}
