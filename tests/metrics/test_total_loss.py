from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from cpr_wrap.metrics import (
    PAPER_LOSSES,
    RampLoss,
    RobustnessCurve,
    TableLoss,
    as_loss,
    inward,
    lemma_total_loss,
    trapezoid_total_loss,
)

from .making import INF, findings, make
from .test_losses import LOSSES

SLACK = 1e-5  # rounding moves radii by 1.2e-7, which a ramp over eps 0.2 turns into 3e-6 at t = 4


@pytest.fixture
def curve():
    """Broken; rejected clean; rejected from 0.05 and from 0.1 of 0.2; nothing."""
    return RobustnessCurve(make([0.2, INF, INF, INF, INF], [0.01, 0, 0.05, 0.1, INF]))


@pytest.mark.parametrize(
    ("loss", "total"),
    [
        ("step:0", 2),
        ("step:0.25", 3),
        ("step:0.5", 4),
        ("step:1", 4),
        ("ramp:1", 1 + 1 + 0.75 + 0.5),
        ("ramp:2", 1 + 1 + 0.75**2 + 0.25),
        ("table:0=0.8,0.5=0.2", 1 + 0.8 + 0.5 + 0.2),
        ("prices:0.25=0.9,0.5=0.1", 1 + 0.9 + 0.9 + 0.1),
    ],
)
def test_totals_by_hand(curve, loss, total):
    assert curve.total_robust_loss(loss) == pytest.approx(total / 5, abs=SLACK)


def test_image_losses_say_who_pays(curve):
    assert curve.image_losses("ramp:1").tolist() == pytest.approx([1, 1, 0.75, 0.5, 0], abs=SLACK)


def test_any_function_of_the_distance_will_do(curve):
    vector = curve.total_robust_loss(lambda r: 1 - r / 0.2)
    scalar = curve.total_robust_loss(lambda r: max(0.0, 1 - r / 0.2))
    assert vector == pytest.approx(curve.total_robust_loss("ramp:1"))
    assert scalar == pytest.approx(vector)


@settings(max_examples=50)
@given(findings())
def test_constant_losses_give_the_ends_of_the_curve(records):
    curve = RobustnessCurve(records)
    assert curve.total_robust_loss(lambda r: 1.0) == pytest.approx(curve.error_at(1))
    nothing = curve.total_robust_loss(lambda r: 0.0)
    assert nothing == pytest.approx(curve.error_at(0) - curve.p_rej)


@settings(max_examples=50)
@given(findings(), LOSSES)
def test_the_exact_rule_is_the_general_lemma(records, loss):
    curve = RobustnessCurve(records)
    assert curve.total_robust_loss(loss) == pytest.approx(lemma_total_loss(curve, loss))


@settings(max_examples=25)
@given(findings())
def test_the_lemma_needs_no_full_loss_at_zero(records):
    """l(0) = 1/2 and l(eps) > 0: where the short form of the lemma would fail."""
    curve = RobustnessCurve(records)
    loss = as_loss(lambda r: 0.5 - 0.3 * r / records.eps)
    assert curve.total_robust_loss(loss) == pytest.approx(lemma_total_loss(curve, loss))


@settings(max_examples=25)
@given(findings())
def test_step_losses_read_the_curve(records):
    curve = RobustnessCurve(records)
    for alpha in (0, 0.01, 0.2, 0.5, 1):
        assert curve.total_robust_loss(f"step:{alpha}") == pytest.approx(curve.error_at(alpha))


@settings(max_examples=25)
@given(findings())
def test_harsher_losses_cost_more(records):
    curve = RobustnessCurve(records)
    totals = [curve.total_robust_loss(RampLoss(t)) for t in (4, 3, 2, 1, 0)]
    assert totals == sorted(totals)
    assert totals[-1] <= curve.robust_error + 1e-12


@settings(max_examples=10)
@given(findings())
def test_the_trapezoid_approaches_the_exact_rule(records):
    step = 0.001
    dense = tuple(round(i * step, 3) for i in range(1001))
    curve = RobustnessCurve(records, alphas=dense)
    for t in (1, 2, 4):
        # Lines misplace each jump by at most one step, where the ramp's slope is at most t.
        coarse = curve.total_robust_loss(RampLoss(t), method="trapezoid", spacing=step)
        assert coarse == pytest.approx(curve.total_robust_loss(RampLoss(t)), abs=2 * t * step)
    table = TableLoss(((0.0, 0.7), (0.4, 0.6), (1.0, 0.1)))
    coarse = curve.total_robust_loss(table, method="trapezoid", spacing=step)
    assert coarse == pytest.approx(curve.total_robust_loss(table), abs=2 * step)


@settings(max_examples=30)
@given(findings())
def test_the_trapezoid_is_exact_for_constant_losses_too(records):
    curve = RobustnessCurve(records)
    one = trapezoid_total_loss(curve, as_loss(lambda r: 1.0))
    assert one == pytest.approx(curve.error_at(1))
    none = trapezoid_total_loss(curve, as_loss(lambda r: 0.0))
    assert none == pytest.approx(curve.error_at(0) - curve.p_rej)


def test_the_trapezoid_of_a_straight_curve():
    """With s(alpha) = alpha, the integral of t · alpha · (1 - alpha)^(t - 1) is 1 / (t + 1)."""
    curve = RobustnessCurve(make([INF] * 2, [0.2, 0.2]), alphas=(0.0, 1.0))
    assert curve.total_robust_loss("ramp:1", method="trapezoid") == pytest.approx(1 / 2, abs=1e-12)
    assert curve.total_robust_loss("ramp:2", method="trapezoid") == pytest.approx(1 / 3, abs=1e-4)
    assert curve.total_robust_loss("ramp:3", method="trapezoid") == pytest.approx(1 / 4, abs=1e-4)
    assert curve.total_robust_loss("step:0.3", method="trapezoid") == pytest.approx(0.3)
    square = curve.total_robust_loss(lambda r: (1 - r / 0.2) ** 2, method="trapezoid")
    assert square == pytest.approx(1 / 3, abs=1e-4)
    assert curve.total_robust_loss("ramp:0.5", method="trapezoid") == pytest.approx(2 / 3, abs=1e-3)


# CCAT's rows in the paper's tables of total robust losses. Step losses print the curve, and CCAT's
# reaches 1 at alpha = 0.1, so all of it is known: errors at 0, 0.01, 0.05; losses of ramps 1 to 4.
PUBLISHED = {
    "mnist, seen": ((0.168, 0.172, 0.926), (0.972, 0.945, 0.919, 0.894)),
    "mnist, unseen": ((0.245, 0.252, 0.994), (0.977, 0.955, 0.934, 0.914)),
    "svhn, seen": ((0.547, 0.629, 1.0), (0.988, 0.977, 0.967, 0.956)),
    "svhn, unseen": ((0.945, 0.993, 1.0), (1.0, 0.999, 0.999, 0.998)),
    "cifar-10, seen": ((0.723, 0.729, 1.0), (0.992, 0.984, 0.976, 0.969)),
    "cifar-10, unseen": ((0.912, 0.985, 1.0), (0.999, 0.998, 0.998, 0.997)),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_the_trapezoid_gives_the_papers_numbers(case):
    (at_0, at_1, at_5), published = PUBLISHED[case]
    counts = [round(1000 * share) for share in (at_0, at_1 - at_0, at_5 - at_1, 1 - at_5)]
    alphas = (0.0, 0.01, 0.05, 0.1)
    radii = [a * 0.3 for a, n in zip(alphas, counts, strict=True) for _ in range(n)]
    curve = RobustnessCurve(make([INF] * 1000, radii, eps=0.3))
    for t, expected in zip((1, 2, 3, 4), published, strict=True):
        total = curve.total_robust_loss(RampLoss(t), method="trapezoid")
        # Both the curve and the loss are printed to three digits.
        assert total == pytest.approx(expected, abs=0.0011)


def test_costs_may_differ_between_images(curve):
    """Image 102 is rejected from 0.05 on, image 103 from 0.1 on, 101 when clean."""

    def only_103(radius, index):
        return torch.where(index == 103, 1 - radius / 0.2, torch.zeros_like(radius))

    def only_103_by_number(radius, index):
        return 1 - radius / 0.2 if index == 103 else 0.0

    for loss in (only_103, only_103_by_number):
        losses = curve.image_losses(loss, per_image=True)
        assert losses.tolist() == pytest.approx([1, 0, 0, 0.5, 0], abs=SLACK)
        assert curve.total_robust_loss(loss, per_image=True) == pytest.approx(0.3, abs=SLACK)
        interval = curve.total_robust_loss_interval(loss, per_image=True)
        assert interval.low <= 0.3 <= interval.high


@settings(max_examples=30)
@given(findings(), LOSSES)
def test_one_loss_for_all_is_a_loss_per_image(records, loss):
    curve = RobustnessCurve(records)
    same = curve.image_losses(lambda radius, index: loss(radius, records.eps), per_image=True)
    assert torch.equal(same, curve.image_losses(loss))


def test_per_image_losses_are_checked_for_every_image(curve):
    def rising(radius, index):
        return radius if index == 104 else 1.0

    with pytest.raises(ValueError, match="rejection loss rising: expected no increase"):
        curve.total_robust_loss(rising, per_image=True)
    with pytest.raises(ValueError, match=r"expected values in \[0, 1\], got 2"):
        curve.total_robust_loss(lambda radius, index: 2.0, per_image=True)


def test_per_image_losses_are_checked_between_grid_points(curve):
    spike = inward(torch.tensor([0.05], dtype=torch.float64), 0.2).item()

    def spiked(radius, index):
        return 1.5 if radius == spike else 0.5

    with pytest.raises(ValueError, match=r"expected values in \[0, 1\], got 1.5"):
        curve.total_robust_loss(spiked, per_image=True)


def test_losses_are_checked_before_use(curve):
    for rule in ("exact", "trapezoid"):
        with pytest.raises(ValueError, match="expected no increase"):
            curve.total_robust_loss(lambda r: r, method=rule)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        curve.total_robust_loss(lambda r, index: 1.0)


def test_the_trapezoid_says_what_it_needs(curve):
    for spacing in (0.0, -0.1, 0.03, 2.0):
        with pytest.raises(ValueError, match=r"spacing: expected a divisor of 1 such as 0.01"):
            curve.total_robust_loss("ramp:1", method="trapezoid", spacing=spacing)


def test_the_papers_losses_all_have_a_total(curve):
    totals = [curve.total_robust_loss(loss) for loss in PAPER_LOSSES]
    assert all(0 <= total <= curve.robust_error for total in totals)
