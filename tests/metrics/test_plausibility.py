"""What a curve implies for classifiers that never reject."""

from __future__ import annotations

from dataclasses import replace

from cpr_wrap.metrics import About, RobustnessCurve
from cpr_wrap.metrics.comparison import implied
from tests.metrics.making import INF, make


def curve(broken, count, *, eps, dataset, rejected=0.01):
    kept = count - broken
    records = make([eps / 2] * broken + [INF] * kept, [INF] * broken + [rejected] * kept, eps=eps)
    return replace(RobustnessCurve(records), about=About(dataset=dataset))


def test_a_claim_above_the_best_known_is_called_one():
    said = implied(curve(5, 200, eps=16 / 255, dataset="cifar10"))
    assert "97.5% at alpha 0 implies" in said
    assert "at Linf 8/255" in said
    assert "more than the best known at 8/255, 75.3%" in said
    assert "a weak attack is the more likely" in said


def test_a_claim_within_chance_of_it_is_not():
    # 77.5 % of 40 images may well be 70 %.
    said = implied(curve(9, 40, eps=16 / 255, dataset="cifar10"))
    assert "does not exceed" in said
    assert "distrust" not in said


def test_without_a_figure_at_half_of_eps_the_implication_stands_alone():
    for eps, dataset in ((8 / 255, "cifar10"), (0.4, "mnist")):
        said = implied(curve(5, 200, eps=eps, dataset=dataset))
        assert "implies a classifier without rejection" in said
        assert "best known" not in said


def test_a_rule_that_never_rejects_implies_nothing():
    assert implied(curve(5, 20, eps=0.4, dataset="mnist", rejected=INF)) == ""


def test_no_robustness_implies_nothing():
    assert implied(curve(0, 20, eps=0.4, dataset="mnist", rejected=0.0)) == ""
