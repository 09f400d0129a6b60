from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_wrap.metrics import (
    RobustnessCurve,
    accuracy_with_rejection,
    clean_metrics,
    f1_like,
    rejection_rate,
    risk_coverage,
    robust_accuracy_with_detection,
)

from .making import INF, findings, make

LABEL = torch.tensor([0, 1, 2, 3, 4])
PREDICTED = torch.tensor([0, 1, -1, 0, -1])


def test_traditional_metrics_by_hand():
    assert rejection_rate(PREDICTED) == pytest.approx(2 / 5)
    assert accuracy_with_rejection(PREDICTED, LABEL) == pytest.approx(2 / 3)
    assert f1_like(PREDICTED, LABEL) == pytest.approx(2 / (3 / 2 + 5 / 3))


def test_a_model_that_rejects_everything_has_no_accuracy():
    silent = torch.full((5,), -1)
    assert math.isnan(accuracy_with_rejection(silent, LABEL))
    assert rejection_rate(silent) == 1
    assert f1_like(silent, LABEL) == 0


def test_a_model_that_is_always_wrong_has_no_harmonic_mean():
    assert f1_like(torch.full((5,), 9), LABEL) == 0


def test_a_perfect_model():
    assert f1_like(LABEL, LABEL) == 1


@settings(max_examples=25)
@given(findings())
def test_robust_accuracy_with_detection_is_the_curve_at_zero(records):
    curve = RobustnessCurve(records)
    assert robust_accuracy_with_detection(records) == pytest.approx(curve.accuracy_at(0))


def test_clean_metrics_of_records():
    metrics = clean_metrics(make([0, 0.1, INF, INF], [INF, INF, 0, 0.1]))
    assert metrics.accuracy_with_rejection == pytest.approx(2 / 3)
    assert metrics.rejection_rate == pytest.approx(1 / 4)
    assert metrics.f1_like == pytest.approx(2 / (3 / 2 + 4 / 3))
    assert metrics.robust_accuracy_with_detection == pytest.approx(1 / 4)
    assert metrics.to_dict()["rejection_rate"] == pytest.approx(1 / 4)


def test_no_nan_in_a_dictionary():
    assert clean_metrics(make([INF], [0])).to_dict()["accuracy_with_rejection"] is None


def test_risk_and_coverage_by_hand():
    curve = risk_coverage(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([True, True, False]))
    assert curve.thresholds.tolist() == [3, 2, 1]
    assert curve.coverages.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert curve.selective_risks.tolist() == pytest.approx([0, 1 / 2, 1 / 3])
    assert curve.generalised_risks.tolist() == pytest.approx([0, 1 / 3, 1 / 3])
    assert curve.aurc == pytest.approx((0 + 1 / 4 + 5 / 12) / 3)
    assert curve.augrc == pytest.approx((0 + 1 / 6 + 1 / 3) / 3)


def test_ties_are_one_threshold():
    curve = risk_coverage(torch.tensor([5, 5, 5, 1]), torch.tensor([False, True, True, False]))
    assert curve.thresholds.tolist() == [5, 1]
    assert curve.selective_risks.tolist() == pytest.approx([1 / 3, 1 / 2])
    assert curve.aurc == pytest.approx(3 / 4 * 1 / 3 + 1 / 4 * (1 / 3 + 1 / 2) / 2)


CASES = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12)


def _columns(cases):
    scores, correct = zip(*cases, strict=True)
    return torch.tensor(scores, dtype=torch.float32), torch.tensor(correct)


@given(CASES)
def test_augrc_is_what_auroc_and_accuracy_say(cases):
    """The identity of Traub et al., with a tie as half a win, counted pair by pair."""
    right = [score for score, correct in cases if correct]
    wrong = [score for score, correct in cases if not correct]
    accuracy = len(right) / len(cases)
    wins = sum(0.5 * (r == w) + (r > w) for r in right for w in wrong)
    lost_pairs = (len(right) * len(wrong) - wins) / len(cases) ** 2
    expected = lost_pairs + (1 - accuracy) ** 2 / 2
    assert risk_coverage(*_columns(cases)).augrc == pytest.approx(expected)


@given(CASES, st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_has_no_say(cases, random):
    shuffled = random.sample(cases, len(cases))
    one, other = risk_coverage(*_columns(cases)), risk_coverage(*_columns(shuffled))
    assert one.aurc == pytest.approx(other.aurc)
    assert one.augrc == pytest.approx(other.augrc)


@given(CASES)
def test_risks_end_at_the_error_and_areas_stay_in_range(cases):
    scores, correct = _columns(cases)
    curve = risk_coverage(scores, correct)
    error = (~correct).double().mean().item()
    assert curve.coverages[-1].item() == 1
    assert curve.selective_risks[-1].item() == pytest.approx(error)
    assert curve.generalised_risks[-1].item() == pytest.approx(error)
    assert (curve.generalised_risks <= curve.selective_risks + 1e-12).all()
    assert -1e-12 <= curve.augrc <= error + 1e-12
    assert curve.augrc <= curve.aurc + 1e-12


def test_a_useless_score_accepts_all_or_none():
    correct = torch.tensor([True, True, True, False])
    curve = risk_coverage(torch.zeros(4), correct)
    assert curve.aurc == pytest.approx(1 / 4)
    assert curve.augrc == pytest.approx(1 / 8)


def test_what_cannot_be_ranked_is_refused():
    yes = torch.tensor([True, True])
    with pytest.raises(TypeError, match=r"correct: expected torch.bool, got torch.int64"):
        risk_coverage(torch.zeros(2), torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="scores: expected numbers, got NaN"):
        risk_coverage(torch.tensor([0.0, math.nan]), yes)
    with pytest.raises(ValueError, match=r"got shapes \(3,\) and \(2,\)"):
        risk_coverage(torch.zeros(3), yes)
    with pytest.raises(ValueError, match="of at least one entry"):
        rejection_rate(torch.tensor([]))
    with pytest.raises(ValueError, match=r"got shapes \(5,\) and \(2,\)"):
        accuracy_with_rejection(PREDICTED, yes)
    with pytest.raises(ValueError, match="records of at least one image"):
        robust_accuracy_with_detection(make([], []))
