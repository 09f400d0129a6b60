from __future__ import annotations

import math

import pytest
import torch

from cpr_wrap.objective import (
    TEMPERATURE,
    Aim,
    Goal,
    Objective,
    Targets,
    View,
    confident_mistake,
    doubt,
    log_prob,
    lost_margin,
    low_confidence,
    low_score,
    margin,
    objective,
    scored_mistake,
)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


PROBS = rows([0.5, 0.3, 0.2], [0.1, 0.1, 0.8])
LOGITS = PROBS.log() + 7  # a shift that no probability notices
Y = torch.tensor([0, 0])
TARGET = torch.tensor([1, 2])
AIM = Aim(Y, TARGET)


def view(outputs=LOGITS, num_classes=3, z=None, **more):
    more.setdefault("aim", AIM)
    return View(z=outputs if z is None else z, outputs=outputs, num_classes=num_classes, **more)


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
    (value,) = low_confidence.terms(view())
    assert torch.allclose(value, -rows(0.5, 0.8).log(), atol=1e-12)
    (value,) = confident_mistake.terms(view())
    assert torch.allclose(value, rows(0.3, 0.8).log())
    (value,) = lost_margin.terms(view())
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
    def both(view):
        return (view.logits[:, 0], 2 * view.logits[:, 1])

    assert isinstance(both, Objective)
    z = rows([0.1, 0.2], [0.3, 0.4]).requires_grad_()
    value, gradient = both.ascent(view(3 * z, 2, z), AIM)
    assert torch.allclose(value, rows(3 * 0.1 + 6 * 0.2, 3 * 0.3 + 6 * 0.4))
    assert torch.allclose(gradient, rows([3, 6], [3, 6]))
    assert not value.requires_grad
    assert not gradient.requires_grad


def test_reading_what_nobody_asked_for_is_named():
    with pytest.raises(RuntimeError, match=r"reads the rule's path; declare it with path="):
        _ = view().end_logits
    with pytest.raises(RuntimeError, match=r"reads the rule's score; declare it with score=True"):
        low_score.terms(view())
    with pytest.raises(RuntimeError, match="without true and target classes"):
        _ = view(aim=None).target
    assert torch.equal(view(path=(LOGITS, PROBS)).end_logits, PROBS)
    assert view(path=(LOGITS, PROBS)).path_logits[0].shape == (2, 3)


def test_the_attacks_for_any_rule_read_its_score():
    seen = view(score=rows(0.2, -0.4), threshold=0.0)
    assert torch.equal(low_score.terms(seen)[0], rows(-0.2, 0.4))
    here, score = scored_mistake.terms(seen)
    assert torch.allclose(here, rows(0.3, 0.8).log())
    assert torch.equal(score, seen.score)
    assert seen.accepted.tolist() == [True, False]
    assert view().accepted is None
