"""What other packages see of a selective classifier, checked against what it answers itself."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import softsign

from cpr_wrap import RULES
from cpr_wrap.attacks.adapters import (
    BaseLogits,
    GoalLogits,
    RejectLogits,
    log_odds,
)
from cpr_wrap.meter import count_passes
from cpr_wrap.objective import Goal
from cpr_wrap.rules import Confidence, CPRWrapper
from cpr_wrap.selective import REJECT, SelectiveClassifier
from tests.devices import only_on
from tests.toys import Curved, Line, Linear, pixels

SETTINGS = {
    "cpr": {"radius": 0.1, "steps": 3, "step_size": 0.05},
    "confidence": {"threshold": 0.7},
    "atrr": {"threshold": 0.4},
}
CLASSES = 4
# The toy network has no bounds, which verified consistency needs.
every_rule = pytest.mark.parametrize("name", [name for name in RULES if name != "verified"])
both_goals = pytest.mark.parametrize("goal", [Goal.ACCEPTED_MISTAKE, Goal.REJECTED])


def make(name):
    rule = RULES[name](**SETTINGS.get(name, {}))
    return SelectiveClassifier(Curved(outputs=CLASSES + rule.extra_outputs, seed=2), rule)


def line():
    """Boundary at 0.5, rejected within 0.1 of it; class 1's lead is 2 · (x - 0.5)."""
    return CPRWrapper(Line(), radius=0.1, steps=4, step_size=0.05)


def column(*values):
    return torch.tensor([[value] for value in values], dtype=torch.float64)


def test_log_odds_are_the_logarithm_of_p_over_1_minus_p():
    logits = torch.randn(50, 5, dtype=torch.float64) * 3
    p = logits.softmax(dim=1)
    assert torch.allclose(log_odds(logits), (p / (1 - p)).log())
    assert torch.allclose(log_odds(logits + 7), log_odds(logits))


def test_log_odds_keep_a_gradient_where_log_probabilities_have_none():
    logits = torch.tensor([[200.0, 0.0, -1.0]], requires_grad=True)
    (faded,) = torch.autograd.grad(logits.log_softmax(dim=1)[0, 0], logits)
    (kept,) = torch.autograd.grad(log_odds(logits)[0, 0], logits)
    assert faded[0, 0] == 0
    assert kept[0, 0] == 1
    assert torch.isfinite(log_odds(logits)).all()


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_goal_logits_leave_the_true_class_exactly_at_the_goal(name, dtype):
    model, x = make(name), pixels(150)
    x = x.to(dtype)
    labels = model.predict(x.double())
    for true in range(CLASSES):
        columns = GoalLogits(model, true, torch.float64)(x)
        assert columns.shape == (150, CLASSES)
        assert columns.dtype == dtype
        reached = (labels != REJECT) & (labels != true)
        assert torch.equal(columns.argmax(dim=1) != true, reached)


@every_rule
def test_goal_logits_with_a_label_for_each_row_are_those_of_each_class(name):
    model, x = make(name), pixels(20)
    y = torch.arange(20) % CLASSES
    columns = GoalLogits(model, y)(x)
    for row in range(20):
        alone = GoalLogits(model, int(y[row]))(x[row : row + 1])
        assert torch.allclose(columns[row], alone[0])


def test_the_lead_of_the_true_class_goes_down_in_three_stages():
    # Right at 0.3; wrong and rejected at 0.55, where T is 0.45; wrong and accepted at 0.7.
    lead = GoalLogits(line(), 0)(column(0.3, 0.55, 0.7))[:, 0]
    # In log-odds both classes count, so the lead at 0.3 is twice 2 · 0.2.
    expected = [0.1 + 0.8, 0.001 + 0.099 * 0.1 / 1.1, -0.001 - 0.2 / 1.2]
    assert torch.allclose(lead, torch.tensor(expected, dtype=torch.float64))


def test_the_stages_are_the_same_where_the_outputs_tell_the_verdict():
    # Class 1's probability is sigmoid(2 · 4 · (x - 0.5)): 0.6 is not enough, 0.9 is.
    model = SelectiveClassifier(Line(slope=4.0), Confidence(threshold=0.9))
    points = column(0.3, 0.6, 0.9)
    assert model.predict(points).tolist() == [REJECT, REJECT, 1]
    lacking, above = (torch.sigmoid(8 * (points[1:] - 0.5)) - 0.9).flatten()
    lead = GoalLogits(model, 0)(points)[:, 0]
    expected = [0.1 + 2 * 8 * 0.2, 0.001 + 0.099 * softsign(-lacking), -0.001 - softsign(above)]
    assert torch.allclose(lead, torch.tensor(expected, dtype=torch.float64))


def test_every_stage_shows_the_way_to_the_next():
    z = column(0.1, 0.3, 0.45, 0.51, 0.55, 0.59, 0.7).requires_grad_()
    (slope,) = torch.autograd.grad(GoalLogits(line(), 0)(z)[:, 0].sum(), z)
    assert (slope < 0).all()


@every_rule
def test_once_the_prediction_is_wrong_only_the_true_class_has_a_gradient(name):
    # Lifting a second wrong class would make the first one less sure.
    model, z = make(name), pixels(40).requires_grad_()
    columns = GoalLogits(model, 1)(z)
    rivals = columns[:, [0, 2, 3]].square().sum()
    (slope,) = torch.autograd.grad(rivals, z)
    moved = slope.flatten(1).any(dim=1)
    assert torch.equal(moved, model.logits(z).argmax(dim=1) == 1)
    assert moved.any()


def test_t_is_made_only_where_the_prediction_is_wrong():
    model = line()
    with count_passes() as right:
        GoalLogits(model, 0)(column(0.1, 0.2, 0.3))
    with count_passes() as wrong:
        GoalLogits(model, 1)(column(0.1))
    assert (right.forwards, right.backwards) == (3, 0)
    # At z once more, T's four steps, and T(z).
    assert (wrong.forwards, wrong.backwards) == (1 + 1 + 4 + 1, 4)


@every_rule
@both_goals
def test_reject_logits_answer_what_the_model_answers(name, goal):
    model, x = make(name), pixels(150)
    labels = model.predict(x)
    columns = RejectLogits(model, goal)(x)
    assert columns.shape == (150, CLASSES + 1)
    assert torch.equal(columns.argmax(dim=1), torch.where(labels == REJECT, CLASSES, labels))
    in_float = RejectLogits(model, goal, torch.float64)(x.float())
    assert in_float.dtype == torch.float32
    expected = model.predict(x.float().double())
    assert torch.equal(in_float.argmax(dim=1), torch.where(expected == REJECT, CLASSES, expected))


@both_goals
def test_ties_are_decided_as_the_model_decides_them(goal):
    flat = Linear(torch.zeros(3, 2), torch.zeros(3))
    for model in (
        CPRWrapper(flat, radius=0.1, steps=2, step_size=0.1),
        SelectiveClassifier(flat, Confidence(threshold=1 / 3)),
    ):
        x = pixels(4, 2)
        labels = model.predict(x)
        assert (labels == 0).all()
        assert torch.equal(RejectLogits(model, goal)(x).argmax(dim=1), labels)
        assert (GoalLogits(model, 0)(x).argmax(dim=1) == 0).all()
        assert (GoalLogits(model, 2)(x).argmax(dim=1) != 2).all()


def test_for_rejections_the_reject_column_has_the_gradient_of_the_score():
    z = column(0.2, 0.7, 0.55).requires_grad_()
    columns = RejectLogits(line(), Goal.REJECTED)(z)
    behind = columns[:, :2].amax(dim=1) - columns[:, 2]
    # The lead at T(z) of the class predicted at z: 2 · (distance to the boundary - 0.1).
    assert torch.allclose(behind, torch.tensor([0.4, 0.2, -0.1], dtype=torch.float64))
    (slope,) = torch.autograd.grad(behind.sum(), z)
    assert torch.allclose(slope, column(-2.0, 2.0, 2.0))


def test_aiming_at_the_reject_column_always_lowers_the_score():
    z = column(0.05, 0.2, 0.32, 0.39, 0.62, 0.9).requires_grad_()
    columns = RejectLogits(line(), Goal.REJECTED)(z)
    loss = torch.nn.functional.cross_entropy(columns, torch.full((6,), 2))
    (slope,) = torch.autograd.grad(-loss, z)
    assert slope.sign().flatten().tolist() == [1, 1, 1, 1, -1, -1]


@every_rule
def test_for_rejections_the_classes_have_no_gradient(name):
    z = pixels(10).requires_grad_()
    classes = RejectLogits(make(name), Goal.REJECTED)(z)[:, :CLASSES]
    (slope,) = torch.autograd.grad(classes.square().sum(), z)
    assert not slope.any()


def test_for_mistakes_the_reject_column_has_no_gradient_and_stays_low():
    z = column(0.2, 0.7, 0.55).requires_grad_()
    columns = RejectLogits(line(), Goal.ACCEPTED_MISTAKE)(z)
    (slope,) = torch.autograd.grad(columns[:, 2].sum(), z, retain_graph=True)
    assert not slope.any()
    accepted = columns[:2]
    assert (accepted[:, 2] <= accepted[:, :2].amin(dim=1) - 1).all()
    (way,) = torch.autograd.grad((columns[:, 1] - columns[:, 0]).sum(), z)
    assert (way > 0).all()


def test_with_labels_reject_logits_are_goal_logits_for_a_batch_of_as_many_points():
    model, x = make("cpr"), pixels(30)
    y = torch.arange(30) % CLASSES
    view = RejectLogits(model, Goal.ACCEPTED_MISTAKE, labels=y)
    columns = view(x)
    assert torch.equal(columns[:, :CLASSES], GoalLogits(model, y)(x))
    assert (columns[:, CLASSES] < columns[:, :CLASSES].amin(dim=1)).all()
    assert torch.equal(view(x[:7]), RejectLogits(model, Goal.ACCEPTED_MISTAKE)(x[:7]))


every_view = pytest.mark.parametrize(
    "look",
    [
        BaseLogits,
        lambda model: GoalLogits(model, 1),
        lambda model: RejectLogits(model, Goal.REJECTED),
        lambda model: RejectLogits(model, Goal.ACCEPTED_MISTAKE),
        lambda model: RejectLogits(model, Goal.ACCEPTED_MISTAKE, labels=torch.arange(6) % CLASSES),
    ],
)


@every_view
@every_rule
def test_views_make_tensors_where_their_points_are(name, look):
    model, x = make(name), pixels(6)
    view = look(model)
    with only_on("cpu"):
        assert view(x).device == x.device


@every_view
@every_rule
def test_a_view_leaves_the_model_alone(name, look):
    model, x = make(name), pixels(6)
    view = look(model)
    first = view(x)
    with torch.no_grad():
        assert torch.equal(view(x), first)
    with torch.inference_mode():
        assert torch.equal(view(x.clone()), first)
    assert not first.requires_grad
    z = x.clone().requires_grad_()
    columns = view(z)
    columns.sum().backward()
    assert torch.equal(columns.detach(), first)
    assert z.grad is not None
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    view.to(torch.float16).train()
    assert all(p.dtype == torch.float64 for p in model.parameters())
    assert not model.base.training
