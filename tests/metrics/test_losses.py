from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpr_wrap.metrics import (
    PAPER_LOSSES,
    RampLoss,
    RejectionLoss,
    StepLoss,
    TableLoss,
    as_loss,
    check_loss,
    parse_loss,
)
from cpr_wrap.metrics.losses import evaluate


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_step_counts_its_own_end():
    assert StepLoss(0.5)(column(0.0, 0.1, 0.10001, 0.2), 0.2).tolist() == [1, 1, 0, 0]


def test_step_at_zero_counts_the_clean_input_only():
    assert StepLoss(0.0)(column(0.0, 1e-12), 0.2).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("t", "at_half", "at_eps"), [(0, 1, 1), (0.5, 0.5**0.5, 0), (1, 0.5, 0), (3, 0.125, 0)]
)
def test_ramp_falls_to_zero_at_eps(t, at_half, at_eps):
    losses = RampLoss(t)(column(0.0, 0.1, 0.2, 0.3), 0.2)
    assert losses.tolist() == pytest.approx([1, at_half, at_eps, 0])


def test_table_joins_points_by_lines_and_holds_the_ends():
    loss = TableLoss(((0.25, 1.0), (0.5, 0.4), (0.75, 0.4)))
    radii = column(0.0, 0.05, 0.075, 0.1, 0.15, 0.2)
    assert loss(radii, 0.2).tolist() == pytest.approx([1, 1, 0.7, 0.4, 0.4, 0.4])


def test_prices_hold_up_to_their_point_and_are_nothing_after_the_last():
    loss = TableLoss(((0.25, 1.0), (0.5, 0.4)), "steps")
    radii = column(0.0, 0.05, 0.0501, 0.1, 0.1001, 0.2)
    assert loss(radii, 0.2).tolist() == [1, 1, 0.4, 0.4, 0, 0]


def test_one_point_is_a_constant():
    assert TableLoss(((0.5, 0.3),))(column(0.0, 0.1, 0.2), 0.2).tolist() == [0.3] * 3


def test_a_table_can_be_a_ramp_and_prices_a_step():
    radii = torch.linspace(0, 0.3, 301, dtype=torch.float64)
    line = TableLoss(((0.0, 1.0), (1.0, 0.0)))
    torch.testing.assert_close(line(radii, 0.3), RampLoss(1)(radii, 0.3))
    price = TableLoss(((0.4, 1.0),), "steps")
    assert torch.equal(price(radii, 0.3), StepLoss(0.4)(radii, 0.3))


def test_the_papers_losses():
    names = [loss.name for loss in PAPER_LOSSES]
    steps = ["step:0", "step:0.01", "step:0.05", "step:0.1", "step:0.15", "step:0.2"]
    assert names == [*steps, "ramp:1", "ramp:2", "ramp:3", "ramp:4"]
    for loss in PAPER_LOSSES:
        check_loss(loss, 8 / 255)


LOSSES = st.one_of(
    st.floats(0, 1).map(StepLoss),
    st.floats(0, 50).map(RampLoss),
    st.builds(
        lambda alphas, losses, between: TableLoss(
            tuple(zip(sorted(alphas), sorted(losses, reverse=True), strict=True)), between
        ),
        st.lists(st.floats(0, 1), min_size=3, max_size=3, unique=True),
        st.lists(st.floats(0, 1), min_size=3, max_size=3),
        st.sampled_from(["linear", "steps"]),
    ),
)


@given(LOSSES, st.sampled_from([8 / 255, 0.3, 3.0]))
def test_every_loss_of_ours_is_a_rejection_loss(loss, eps):
    assert isinstance(loss, RejectionLoss)
    check_loss(loss, eps)


@given(LOSSES)
def test_names_read_back_as_the_same_loss(loss):
    assert parse_loss(loss.name) == loss


@pytest.mark.parametrize(
    "function",
    [
        lambda r: torch.exp(-r),
        lambda r: math.exp(-r),
        lambda r: np.exp(-np.asarray(r)),
    ],
    ids=["torch", "math", "numpy"],
)
def test_functions_of_tensors_and_of_numbers_give_the_same(function):
    radii = column(0.0, 0.1, 0.2)
    assert as_loss(function)(radii, 0.2).tolist() == pytest.approx(
        [1, math.exp(-0.1), math.exp(-0.2)]
    )


def test_a_function_may_branch_on_the_distance_or_be_constant():
    radii = column(0.0, 0.1, 0.2)
    assert as_loss(lambda r: 1.0 if r < 0.1 else 0.5)(radii, 0.2).tolist() == [1, 0.5, 0.5]
    assert as_loss(lambda r: 0.25)(radii, 0.2).tolist() == [0.25] * 3


def test_a_function_of_two_columns_goes_row_by_row_where_it_must():
    def cost(radius, index):
        return max(0.0, 1 - radius) if index == 1 else 0.0

    assert evaluate(cost, column(0.5, 0.5), torch.tensor([1, 2])).tolist() == [0.5, 0]


def test_a_function_keeps_its_name():
    def by_distance(r):
        return 1 - r

    assert as_loss(by_distance).name == "by_distance"
    assert as_loss(StepLoss(0.1)) == StepLoss(0.1)
    assert as_loss("ramp:2") == RampLoss(2)


def test_a_broken_function_shows_its_own_error():
    def broken(r):
        raise ValueError("no price for this")

    with pytest.raises(ValueError, match="no price for this"):
        as_loss(broken)(column(0.1), 0.2)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda r: r, "expected no increase"),
        (lambda r: 2 - r, r"expected values in \[0, 1\], got 2 at distance 0"),
        (lambda r: 0.01 - r, r"expected values in \[0, 1\], got -"),
        (lambda r: r * math.nan, r"expected values in \[0, 1\], got nan"),
    ],
)
def test_losses_that_rise_or_leave_the_range_are_refused(function, text):
    with pytest.raises(ValueError, match=text):
        check_loss(as_loss(function), 0.2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: StepLoss(1.5), r"alpha0: expected a fraction of eps in \[0, 1\], got 1.5"),
        (lambda: StepLoss(math.nan), "alpha0: expected a fraction"),
        (lambda: RampLoss(-1), "t: expected a finite exponent of at least 0, got -1"),
        (lambda: RampLoss(math.inf), "t: expected a finite exponent"),
        (lambda: TableLoss(()), "points: expected at least one"),
        (lambda: TableLoss(((0.5, 1.0), (0.2, 0.5))), "points: expected fractions of eps that"),
        (lambda: TableLoss(((0.5, 1.0), (0.5, 0.5))), "points: expected fractions of eps that"),
        (lambda: TableLoss(((0.5, 1.0), (1.2, 0.5))), "points: expected fractions of eps that"),
        (lambda: TableLoss(((0.2, 0.5), (0.5, 0.6))), "points: expected losses in"),
        (lambda: TableLoss(((0.2, 1.5),)), "points: expected losses in"),
        (lambda: TableLoss(((0.2, 1.0),), "cubic"), "between: expected 'linear' or 'steps'"),
        (lambda: parse_loss("step:much"), "cannot read the rejection loss 'step:much'"),
        (lambda: parse_loss("step:2"), "cannot read the rejection loss 'step:2': alpha0"),
        (lambda: parse_loss("table:0.5"), "cannot read the rejection loss 'table:0.5'"),
    ],
)
def test_wrong_losses_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_unknown_losses_are_refused():
    with pytest.raises(LookupError, match=r"unknown rejection loss 'stp:0.1'; expected step:ALPHA"):
        parse_loss("stp:0.1")
    with pytest.raises(TypeError, match="or a function of the distance, got float"):
        as_loss(0.5)
