from __future__ import annotations

import math

import pytest
import torch

from cpr_wrap.objective import (
    TEMPERATURE,
    Goal,
    Objective,
    Targets,
    View,
    _off,
    confident_mistake,
    doubt,
    log_prob,
    lost_margin,
    low_confidence,
    margin,
    objective,
    probability_margin,
)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


PROBS = rows([0.5, 0.3, 0.2], [0.1, 0.1, 0.8])
LOGITS = PROBS.log() + 7  # a shift that no probability notices
Y = torch.tensor([0, 0])
TARGET = torch.tensor([1, 2])


def view(outputs=LOGITS, shadow=None, num_classes=3):
    return View(outputs, shadow, None, num_classes)


# Terms by hand.


def test_log_probability():
    assert torch.allclose(log_prob(LOGITS, TARGET), rows(0.3, 0.8).log())


def test_doubt_is_minus_log_of_the_largest_probability_but_for_smoothing():
    assert torch.allclose(doubt(LOGITS), -rows(0.5, 0.8).log(), atol=1e-12)
    # Where k classes tie, the smooth maximum is log(k) / temperature above the true one.
    tied = torch.zeros(1, 4, dtype=torch.float64)
    assert doubt(tied).item() == pytest.approx(math.log(4) - math.log(4) / TEMPERATURE)
    assert TEMPERATURE == 100


def test_doubt_at_any_temperature():
    value = doubt(rows([2.0, 0.0]), temperature=1.0)
    assert torch.allclose(value, torch.zeros(1, dtype=torch.float64))  # the two terms are the same


def test_doubt_stays_finite_for_sure_networks():
    logits = torch.tensor([[500.0, -500.0]], requires_grad=True)
    value = doubt(logits)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.isfinite().all()
    assert gradient.isfinite().all()


def test_margin():
    lead = margin(LOGITS, torch.tensor([0, 0]))
    assert torch.allclose(lead, rows(math.log(0.5 / 0.3), math.log(0.1 / 0.8)))
    assert torch.equal(margin(rows([1.0, 1.0]), torch.tensor([1])), rows(0.0))


def test_the_papers_objectives_by_hand():
    (value,) = low_confidence.terms(view(), Y, TARGET)
    assert torch.allclose(value, -rows(0.5, 0.8).log(), atol=1e-12)
    (value,) = confident_mistake.terms(view(), Y, TARGET)
    assert torch.allclose(value, rows(0.3, 0.8).log())
    (value,) = probability_margin.terms(view(), Y, TARGET)
    assert torch.allclose(value, rows(0.3 - 0.5, 0.8 - 0.1))
    (value,) = lost_margin.terms(view(), Y, TARGET)
    assert torch.allclose(value, rows(math.log(0.3 / 0.5), math.log(0.8 / 0.1)))


def test_names_are_the_papers_and_targets_fit():
    assert (low_confidence.name, low_confidence.targets) == ("LCIA", Targets.NONE)
    assert (confident_mistake.name, confident_mistake.targets) == ("HCMOA", Targets.OTHERS)


def test_extra_columns_are_not_classes():
    outputs = torch.cat([LOGITS, rows([99.0], [99.0])], dim=1)
    assert torch.equal(view(outputs).logits, LOGITS)
    assert view(outputs).predicted.tolist() == [0, 2]


# Goals.


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (Goal.REJECTED, [False, False, True, True]),
        (Goal.ACCEPTED_MISTAKE, [False, True, False, False]),
        (Goal.MISTAKE, [False, True, False, True]),
    ],
)
def test_goals(goal, expected):
    predicted, y = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 0, 0])
    accepted = torch.tensor([True, True, False, False])
    assert goal.reached(predicted, accepted, y).tolist() == expected


# Climbing.


def test_a_sum_climbs_the_sum_of_its_terms():
    @objective("both", targets=Targets.ALL)
    def both(view, y, target):
        return (view.logits[:, 0], 2 * view.logits[:, 1])

    assert isinstance(both, Objective)
    z = rows([0.1, 0.2], [0.3, 0.4]).requires_grad_()
    value, gradient = both.ascent(view(3 * z, num_classes=2), Y, TARGET, z)
    assert torch.allclose(value, rows(3 * 0.1 + 6 * 0.2, 3 * 0.3 + 6 * 0.4))
    assert torch.allclose(gradient, rows([3, 6], [3, 6]))
    assert not value.requires_grad
    assert not gradient.requires_grad


def test_orthogonal_steps_work_on_the_lagging_term_without_undoing_the_other():
    a, b = rows(1.0, 0.0), rows(3.0, 4.0)

    @objective("two", combine="orthogonal")
    def two(view, y, target):
        return (view.outputs @ a, view.outputs @ b)

    z = rows([0.2, 0.9], [0.9, -0.9]).requires_grad_()  # the first lags, then the second
    value, gradient = two.ascent(view(1 * z, num_classes=2), Y, TARGET, z)
    assert torch.allclose(value, rows(0.2 + 4.2, 0.9 - 0.9))
    # a minus its part along b, 3/25 b; b minus its part along a, 3 a.
    assert torch.allclose(gradient, torch.stack([a - 3 / 25 * b, b - 3 * a]))
    assert (gradient[0] @ b).abs() < 1e-12
    assert (gradient[1] @ a).abs() < 1e-12


def test_orthogonal_to_nothing_is_the_gradient_itself():
    @objective("flat", combine="orthogonal")
    def flat(view, y, target):
        return (view.outputs[:, 0], 0 * view.outputs[:, 1] + 5)

    z = rows([0.2, 0.9]).requires_grad_()
    _, gradient = flat.ascent(view(1 * z, num_classes=2), Y, TARGET, z)
    assert torch.equal(gradient, rows([1.0, 0.0]))


def test_reading_t_without_having_asked_for_it_is_named():
    with pytest.raises(RuntimeError, match=r"reads T\(z\); declare it with shadow=True"):
        _ = view().shadow_logits
    assert torch.equal(view(shadow=PROBS).shadow_logits, PROBS)


def test_orthogonal_steps_survive_tiny_gradients():
    gradient, other = torch.tensor([[1.0, 1.0]]) * 1e-30, torch.tensor([[1.0, 0.0]]) * 1e-30
    assert torch.allclose(_off(gradient, other) * 1e30, torch.tensor([[0.0, 1.0]]))
    assert torch.equal(_off(gradient, torch.zeros(1, 2)), gradient)
