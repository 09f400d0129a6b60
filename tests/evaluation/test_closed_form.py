"""Networks with a known boundary: the whole curve follows from the paper's Theorem 2."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.metrics import PAPER_LOSSES, StepLoss, theorem2_curve
from cpr_wrap.rules import AcceptAll, CPRWrapper
from tests.toys import Line, Plane

EPS, DELTA = 0.2, 0.25
RADIUS = DELTA * EPS


def line_images() -> tuple[Tensor, Tensor]:
    """Points at known distances from 0.5 on both sides, none of them exactly on a limit."""
    distance = torch.linspace(0.013, 0.293, 29, dtype=torch.float64)
    x = torch.cat([0.5 - distance, 0.5 + distance])[:, None]
    return x, (x[:, 0] > 0.5).long()


def plane_images() -> tuple[Tensor, Tensor]:
    steps = torch.linspace(0.213, 0.787, 6, dtype=torch.float64)
    x = torch.cartesian_prod(steps, steps)
    x = x[Plane.distance(x).abs() > 1e-3]
    return x, (Plane.distance(x) > 0).long()


BUDGETS = ["quick", pytest.param("standard", marks=pytest.mark.slow)]


@pytest.mark.parametrize("budget", BUDGETS)
def test_line_gives_the_curve_of_theorem_2(budget):
    x, y = line_images()
    model = CPRWrapper(Line(slope=4), radius=RADIUS, steps=6, step_size=0.01)
    curve = robustness_curve(model, x, y, EPS, budget=budget)
    distance = (x[:, 0] - 0.5).abs()
    truth = theorem2_curve(distance, torch.zeros_like(y, dtype=torch.bool), eps=EPS, radius=RADIUS)
    assert truth.applicable
    broken = distance <= (1 - DELTA) * EPS
    assert curve.records.outer_broken.tolist() == broken.tolist()
    standing = ~broken
    ideal = distance[standing] - RADIUS
    reachable = ideal <= EPS
    found = curve.records.rejected_radius[standing]
    assert found.isfinite().tolist() == reachable.tolist()
    # No rejection can be nearer than that; the search comes within 2 % of eps of it.
    assert (found[reachable] >= ideal[reachable] - 1e-9).all()
    assert (found[reachable] - ideal[reachable]).max() < 0.02 * EPS
    # A rejected point says how far the boundary is at most.
    boundary = curve.records.boundary_distance
    assert (boundary <= curve.records.rejected_radius + RADIUS).all()
    assert (boundary >= distance - 1e-9).all()
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0):
        lower = truth.error_at(max(0.0, alpha - 0.02))
        assert lower - 1e-9 <= curve.error_at(alpha) <= truth.error_at(alpha) + 1e-9
    for loss in PAPER_LOSSES:
        assert curve.total_robust_loss(loss) <= truth.total_robust_loss(loss) + 1e-9
        assert curve.total_robust_loss(loss) >= truth.total_robust_loss(loss) - 0.03


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_plane_breaks_what_lies_within_reach(norm, budget):
    x, y = plane_images()
    model = CPRWrapper(Plane(), radius=RADIUS, steps=6, step_size=0.01, norm=norm)
    curve = robustness_curve(model, x, y, EPS, budget=budget)
    distance = Plane.distance(x).abs() / (1.4 if norm == "Linf" else 1.0)
    edge = ((distance - (1 - DELTA) * EPS).abs() < 2e-3) | ((distance - 1.25 * EPS).abs() < 5e-3)
    inside = (distance < (1 - DELTA) * EPS)[~edge]
    assert curve.records.outer_broken[~edge].tolist() == inside.tolist()
    standing = ~edge & (distance > (1 - DELTA) * EPS) & (distance < (1 + DELTA) * EPS)
    found, ideal = curve.records.rejected_radius[standing], distance[standing] - RADIUS
    assert found.isfinite().all()
    assert ((found - ideal) > -1e-6).all()
    assert ((found - ideal) < 0.03 * EPS).all()


@pytest.mark.parametrize("budget", BUDGETS)
def test_distances_of_three_quarters_cost_nothing_up_to_half(budget):
    distance = torch.linspace(0.76, 1.4, 17, dtype=torch.float64) * EPS
    x = (0.5 + distance)[:, None]
    y = torch.ones(len(x), dtype=torch.int64)
    model = CPRWrapper(Line(slope=4), radius=RADIUS, steps=6, step_size=0.01)
    curve = robustness_curve(model, x, y, EPS, budget=budget)
    for alpha in (0.0, 0.1, 0.3, 0.5):
        assert curve.total_robust_loss(StepLoss(alpha)) == 0
    assert curve.robust_error > 0


def test_a_rule_that_never_rejects_gives_a_flat_curve():
    x, y = line_images()
    curve = robustness_curve(CPRWrapper(Line()).with_rule(AcceptAll()), x, y, EPS, budget="quick")
    expected = ((x[:, 0] - 0.5).abs() <= EPS).double().mean()
    alphas = torch.linspace(0, 1, 11, dtype=torch.float64)
    assert curve.error_at(alphas).tolist() == pytest.approx([float(expected)] * 11)


def test_theory_is_shown_beside_the_curve():
    x, y = line_images()
    model = CPRWrapper(Line(slope=4), radius=RADIUS, steps=6, step_size=0.01)
    curve = robustness_curve(model, x, y, EPS, budget="quick")
    bound, closed = curve.theorems()
    assert bound.applicable
    assert closed.applicable
    # Measured boundary distances are upper bounds; here they are nearly exact.
    for alpha in curve.alphas:
        assert curve.error_at(alpha) <= bound.error_at(alpha) + 0.04
