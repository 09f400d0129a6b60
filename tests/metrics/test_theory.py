from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_wrap.metrics import (
    PAPER_LOSSES,
    RampLoss,
    RobustnessCurve,
    StepLoss,
    as_loss,
    ideal_rejected_radius,
    theorem1_bound,
    theorem2_curve,
    theorems_of,
)

from .making import INF, Line, make
from .test_losses import LOSSES

PAPER_LOSS_NAMES = [loss.name for loss in PAPER_LOSSES]


def distances(*values):
    return torch.tensor(values, dtype=torch.float64)


def right(count):
    return torch.zeros(count, dtype=torch.bool)


WORLDS = st.tuples(
    st.lists(st.integers(0, 2), min_size=12, max_size=40),  # answers of the base network
    st.integers(1, 8),  # eps
    st.integers(0, 8),  # the rule's radius
)


@settings(max_examples=50)
@given(WORLDS, st.data())
def test_proposition_1_and_the_records_agree_with_the_definitions(world, data):
    """Any selective classifier on a line: two definitions, and the curve made of records."""
    answers, eps, _ = world
    line = Line(answers)
    f = data.draw(st.lists(st.integers(-1, 2), min_size=len(answers), max_size=len(answers)))
    places = st.tuples(st.integers(0, len(answers) - 1), st.integers(0, 2))
    points = data.draw(st.lists(places, min_size=1, max_size=6))
    curve = RobustnessCurve(line.records(f, points, eps))
    for inner in range(eps + 1):
        first = [line.error_by_definition(f, x, y, eps, inner) for x, y in points]
        second = [line.error_by_proposition(f, x, y, eps, inner) for x, y in points]
        assert first == second
        assert curve.error_at(inner / eps) == pytest.approx(sum(first) / len(first))
    for loss in (RampLoss(1), RampLoss(3), StepLoss(0.5)):
        prices = loss(torch.arange(eps + 1, dtype=torch.float64), eps).tolist()
        worst = [line.loss_by_definition(f, x, y, eps, prices) for x, y in points]
        total = sum(worst) / len(worst)
        assert curve.total_robust_loss(loss) == pytest.approx(total, abs=1e-5)


@settings(max_examples=50)
@given(WORLDS, st.data())
def test_theorem_1_bounds_the_ideal_rule(world, data):
    """Any base network, three classes, any labels: the ideal rule stays below the bound."""
    answers, eps, radius = world
    radius = min(radius, eps)
    line = Line(answers)
    f = line.selective(radius)
    places = st.tuples(st.integers(0, len(answers) - 1), st.integers(0, 2))
    points = data.draw(st.lists(places, min_size=1, max_size=8))
    records = line.records(f, points, eps)
    curve = RobustnessCurve(records)
    bound, _ = theorems_of(records, float(radius))
    assert bound.applicable
    for inner in range(eps + 1):
        assert curve.error_at(inner / eps) <= bound.error_at(inner / eps) + 1e-12
    for loss in ("step:0.25", "ramp:2"):
        assert curve.total_robust_loss(loss) <= bound.total_robust_loss(loss) + 1e-5


@settings(max_examples=50)
@given(st.integers(1, 8), st.integers(0, 4), st.lists(st.integers(20, 59), min_size=1, max_size=8))
def test_theorem_2_is_the_ideal_rules_curve(eps, radius, places):
    """One boundary, deep regions, no clean error: counted and closed form are the same."""
    radius = min(radius, eps // 2)
    line = Line([0] * 40 + [1] * 40)
    points = [(x, line.answers[x]) for x in places]
    records = line.records(line.selective(radius), points, eps)
    curve = RobustnessCurve(records)
    _, closed = theorems_of(records, float(radius))
    assert closed.applicable, closed.why
    alphas = torch.arange(eps + 1, dtype=torch.float64) / eps
    torch.testing.assert_close(closed.error_at(alphas), curve.error_at(alphas))
    for loss in PAPER_LOSSES:
        assert closed.total_robust_loss(loss) == pytest.approx(curve.total_robust_loss(loss))


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=10),
    st.sampled_from([0.0, 0.1, 0.25, 0.5]),
    st.sampled_from([8 / 255, 0.3]),
    LOSSES,
)
def test_the_three_ways_to_the_ideal_curve_agree(parts, delta, eps, loss):
    """Closed form, bound, and records made image by image, for distances of any kind."""
    radius = delta * eps
    distance = torch.tensor(parts, dtype=torch.float64) / 1000 * eps + 0.0003 * eps
    closed = theorem2_curve(distance, right(len(parts)), eps=eps, radius=radius)
    bound = theorem1_bound(distance, right(len(parts)), eps=eps, radius=radius)
    ideal = ideal_rejected_radius(distance, radius)
    mistaken = distance <= eps - radius
    found = make(
        torch.where(mistaken, distance + radius, INF).tolist(),
        torch.where(ideal <= eps, ideal, INF).tolist(),
        eps=eps,
    )
    curve = RobustnessCurve(found)
    for alpha in (0.0, 0.1, 0.5, 0.75, 0.9, 1.0):
        expected = closed.error_at(alpha)
        assert curve.error_at(alpha) == pytest.approx(expected)
        assert bound.error_at(alpha) == pytest.approx(expected)
    total = closed.total_robust_loss(loss)
    assert curve.total_robust_loss(loss) == pytest.approx(total, abs=1e-4)
    assert bound.total_robust_loss(loss) == pytest.approx(total, abs=1e-4)


@given(st.lists(st.floats(0.7501, 5), min_size=1, max_size=8), st.floats(0, 0.5))
def test_far_images_lose_nothing_under_short_steps(parts, alpha0):
    """The paper's example: distances beyond 3/4 eps, delta 1/4, any step up to 1/2."""
    eps = 0.3
    distance = torch.tensor(parts, dtype=torch.float64) * eps
    closed = theorem2_curve(distance, right(len(parts)), eps=eps, radius=eps / 4)
    assert closed.delta == pytest.approx(1 / 4)
    assert closed.total_robust_loss(StepLoss(alpha0)) == 0
    assert closed.error_at(alpha0) == 0


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_theorem_1_is_tight_on_its_own_distribution(alpha):
    """The appendix's four points: the bound is beta / 2, and no classifier does better."""
    eps, beta = 16, 0.25
    near = int(alpha * eps / 4)
    # Points -4 eps, -near, near, 4 eps with weights 3/8, 1/8, 1/8, 3/8; f*(x) = sign(x + eps).
    weighted = [(-4 * eps, -1)] * 3 + [(-near, -1), (near, 1)] + [(4 * eps, 1)] * 3
    away = distances(*(abs(x + eps) for x, _ in weighted))
    wrong = torch.tensor([(1 if x + eps > 0 else -1) != y for x, y in weighted])
    bound = theorem1_bound(away, wrong, eps=float(eps), radius=(1 - alpha) / 2 * eps)
    assert bound.error_at(alpha) == pytest.approx(beta / 2)

    # Whatever a classifier answers at -near, 0 and near, in reach of both middle points.
    spots = sorted({-near, 0, near})
    lowest = min(
        sum(
            any(f != y for z, f in zip(spots, answers, strict=True) if abs(z - x) <= alpha * eps)
            for x, y in weighted
            if abs(x) == near
        )
        for answers in product((-1, 1, "reject"), repeat=len(spots))
    )
    assert lowest / len(weighted) >= beta / 2


def test_theorem_2_by_hand():
    """eps 0.4, delta 1/4: mistakes up to 0.3, rejections from there up to 0.5."""
    closed = theorem2_curve(distances(0.1, 0.35, 0.45, 0.6), right(4), eps=0.4, radius=0.1)
    assert [closed.error_at(alpha) for alpha in (0, 0.5, 0.7, 1)] == [0.25, 0.25, 0.5, 0.75]
    ramp = 1 + (1 - 0.25 / 0.4) + (1 - 0.35 / 0.4)
    assert closed.total_robust_loss("ramp:1") == pytest.approx(ramp / 4, abs=1e-5)
    assert closed.total_robust_loss(lambda r: 1.0) == pytest.approx(closed.error_at(1.0))


def test_theorem_1_counts_clean_errors_and_a_budget_between():
    wrong = torch.tensor([True, False, False, False])
    bound = theorem1_bound(distances(INF, 0.1, 0.35, 0.6), wrong, eps=0.4, radius=0.1)
    assert [bound.error_at(alpha) for alpha in (0, 0.5, 0.7, 1)] == [0.5, 0.5, 0.75, 0.75]
    assert bound.error_at(torch.tensor([[0.0, 1.0]])).tolist() == [[0.5, 0.75]]
    assert bound.total_robust_loss(lambda r: 0.0) == 0.5
    assert bound.total_robust_loss(lambda r: 1.0) == 0.75


def test_ideal_radii():
    radii = ideal_rejected_radius(distances(0.0, 0.1, 0.25, INF), 0.1)
    assert radii.tolist() == pytest.approx([0, 0, 0.15, INF])


def test_conditions_of_theorem_2():
    near = distances(0.1, 0.6)
    assert theorem2_curve(near, right(2), eps=0.4, radius=0.2).applicable
    wide = theorem2_curve(near, right(2), eps=0.4, radius=0.3)
    assert not wide.applicable
    assert wide.why == "delta = radius / eps is 0.75, above 1/2"
    wrong = theorem2_curve(near, torch.tensor([False, True]), eps=0.4, radius=0.1)
    assert wrong.why == "the base network is wrong on 1 clean inputs"
    shallow = theorem2_curve(near, right(2), eps=0.4, radius=0.1, depth=distances(0.05, 0.0))
    assert shallow.why == "1 images have only regions shallower than radius within eps"
    deep = theorem2_curve(near, right(2), eps=0.4, radius=0.1, depth=distances(0.1, 0.0))
    assert deep.applicable
    assert deep.unchecked == ()
    assert theorem2_curve(near, right(2), eps=0.4, radius=0.1).unchecked == (
        "regions at least radius deep",
    )


def test_a_shallow_region_makes_the_closed_form_wrong():
    """Why depth is a condition: behind the boundary lies a strip too thin to hide a mistake in."""
    line = Line([0] * 20 + [1] * 2 + [0] * 20)
    records = line.records(line.selective(2), [(18, 0)], 8)
    curve = RobustnessCurve(records)
    _, closed = theorems_of(records, 2.0)
    assert closed.error_at(0.0) == 1  # as if a mistake could be hidden
    assert curve.total_robust_loss(lambda r: 0.0) == 0  # but nothing wrong is ever accepted
    _, checked = theorems_of(replace(records, depth=distances(1.0)), 2.0)
    assert not checked.applicable


def test_records_without_base_answers_are_read_from_the_clean_ones():
    found = make([0, INF, INF], [INF, 0, 0.15], boundary_distance=distances(0.1, 0.05, 0.25))
    bound, closed = theorems_of(found, 0.1)
    assert bound.base_wrong.tolist() == [True, False, False]
    assert closed.why == "the base network is wrong on 1 clean inputs"
    assert closed.unchecked[1] == "a base network that is right on the clean inputs rejected"
    known, closed = theorems_of(replace(found, base_label=torch.tensor([1, 2, 0])), 0.1)
    assert known.base_wrong.tolist() == [True, True, False]
    assert len(closed.unchecked) == 1


def test_an_ideal_rule_without_reach_is_the_base_network():
    """delta = 0 rejects nothing: one flat curve, the base network's robust error."""
    closed = theorem2_curve(distances(0.1, 0.3, 0.5), right(3), eps=0.4, radius=0.0)
    assert [closed.error_at(alpha) for alpha in (0, 0.5, 1)] == pytest.approx([2 / 3] * 3)
    for name in PAPER_LOSS_NAMES:
        assert closed.total_robust_loss(name) == pytest.approx(2 / 3)


def test_what_does_not_apply_gives_no_numbers():
    bound = theorem1_bound(distances(0.1), right(1), eps=0.4, radius=0.5)
    assert bound.why == "expected a radius of at most eps=0.4, got 0.5"
    for call in (lambda: bound.error_at(0.1), lambda: bound.total_robust_loss("ramp:1")):
        with pytest.raises(
            ValueError, match="Theorem1Bound does not apply here: expected a radius"
        ):
            call()
    closed = theorem2_curve(distances(0.1), right(1), eps=0.4, radius=0.3)
    for call in (lambda: closed.error_at(0.1), lambda: closed.total_robust_loss("ramp:1")):
        with pytest.raises(ValueError, match="Theorem2Curve does not apply here: delta"):
            call()


def test_losses_and_alphas_are_checked():
    bound = theorem1_bound(distances(0.1), right(1), eps=0.4, radius=0.1)
    closed = theorem2_curve(distances(0.1), right(1), eps=0.4, radius=0.1)
    for theorem in (bound, closed):
        with pytest.raises(ValueError, match=r"alpha: expected fractions of eps in \[0, 1\]"):
            theorem.error_at(1.1)
        with pytest.raises(ValueError, match="expected no increase"):
            theorem.total_robust_loss(as_loss(lambda r: r))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"eps": 0.0}, ValueError, "eps: expected a finite number above 0"),
        ({"radius": -0.1}, ValueError, "radius: expected a finite number of at least 0, got -0.1"),
        ({"distance": distances()}, ValueError, "with at least one image"),
        ({"base_wrong": right(3)}, ValueError, r"got shapes \(2,\) and \(3,\)"),
        ({"base_wrong": torch.zeros(2)}, TypeError, "base_wrong: expected torch.bool"),
        ({"distance": distances(0.1, -0.1)}, ValueError, "distance: expected distances of at"),
        ({"distance": distances(0.1, float("nan"))}, ValueError, "distance: expected distances"),
    ],
)
@pytest.mark.parametrize("theorem", [theorem1_bound, theorem2_curve])
def test_columns_are_checked(theorem, change, error, text):
    given_ = {"distance": distances(0.1, 0.2), "base_wrong": right(2), "eps": 0.4, "radius": 0.1}
    with pytest.raises(error, match=text):
        theorem(**given_ | change)


def test_measured_columns_are_checked():
    with pytest.raises(ValueError, match=r"depth: expected 1 entries, got shape \(2,\)"):
        theorem2_curve(distances(0.1), right(1), eps=0.4, radius=0.1, depth=distances(0.1, 0.2))
    with pytest.raises(ValueError, match="expected records with boundary_distance"):
        theorems_of(make([INF], [INF]), 0.1)
