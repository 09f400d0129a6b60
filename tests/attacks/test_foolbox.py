"""Foolbox both ways: what its criteria call a success, the model itself must confirm."""

from __future__ import annotations

import importlib.util
import pickle
import random
import sys

import foolbox
import numpy as np
import pytest
import torch
from foolbox import attacks

from cpr_wrap.attacks import foolbox as adapter
from cpr_wrap.attacks.foolbox import FoolboxAttack, to_foolbox
from cpr_wrap.meter import count_passes
from cpr_wrap.objective import Goal
from cpr_wrap.rules import Confidence, CPRWrapper
from cpr_wrap.selective import REJECT, SelectiveClassifier
from tests.toys import Curved, Line, Linear, Plane, pixels

MISTAKE, REJECTED = Goal.ACCEPTED_MISTAKE, Goal.REJECTED
both_goals = pytest.mark.parametrize("goal", [MISTAKE, REJECTED])
CLASSES = 4

# Each as short as it can be and still find something here.
ATTACKS = {
    "LinfPGD": attacks.LinfPGD(steps=12, rel_stepsize=0.2),
    "L2PGD": attacks.L2PGD(steps=12, rel_stepsize=0.2),
    "LInfFMN": attacks.LInfFMNAttack(steps=15),
    "LinfDeepFool": attacks.LinfDeepFoolAttack(steps=8),
    "L2DeepFool": attacks.L2DeepFoolAttack(steps=8),
    "HopSkipJump": attacks.HopSkipJumpAttack(
        steps=2, initial_gradient_eval_steps=8, max_gradient_eval_steps=10, constraint="linf"
    ),
    "Boundary": attacks.BoundaryAttack(steps=30),
}
every_attack = pytest.mark.parametrize("name", ATTACKS)


def plane():
    """Mistakes pass from 0.05 beyond the boundary on; rejected within 0.05 of it, in Linf."""
    return CPRWrapper(Plane(), radius=0.05, steps=3, step_size=0.02)


def curved():
    return SelectiveClassifier(Curved(CLASSES, seed=2), Confidence(threshold=0.7))


def images(model, count=6, *shape):
    """Images that are accepted, and the classes that they are accepted as."""
    x = pixels(60, *shape)
    labels = model.predict(x)
    x, y = x[labels != REJECT][:count], labels[labels != REJECT][:count]
    assert len(x) == count
    return x, y


def reached(model, points, y, goal):
    selection = model(points)
    return goal.reached(selection.predicted, selection.accepted, y)


def run(attack, model, x, y, eps=0.3, *, seed=0):
    return attack.perturb(model, x, y, eps, norm="Linf", seed=seed, index=torch.arange(len(x)))


# A selective classifier as a Foolbox model


@every_attack
@pytest.mark.parametrize(
    ("goal", "labelled"), [(MISTAKE, False), (MISTAKE, True), (REJECTED, False)]
)
def test_every_success_that_a_criterion_claims_is_one(name, goal, labelled):
    for model, shape in ((plane(), (2,)), (curved(), (1, 2, 2))):
        x, y = images(model, 4, *shape)
        target = to_foolbox(model, goal=goal, labels=y if labelled else None)
        criterion = target.criterion(x, y)
        given = {}
        if name in ("HopSkipJump", "Boundary"):
            start = attacks.LinearSearchBlendedUniformNoiseAttack(steps=10)
            given["starting_points"] = start.run(target, x, criterion)
        raw, clipped, success = ATTACKS[name](target, x, criterion, epsilons=0.4, **given)
        assert torch.equal(success, reached(model, clipped.clamp(0, 1), y, goal))
        assert torch.equal(criterion(raw, target(raw)), reached(model, raw.clamp(0, 1), y, goal))


@every_attack
@both_goals
def test_attacks_do_reach_the_goal(name, goal):
    model = curved()
    x, y = images(model)
    points = run(FoolboxAttack(ATTACKS[name], goal=goal), model, x, y, 0.8)
    assert reached(model, points, y, goal).sum() >= 4


def test_a_rejection_is_no_accepted_mistake_and_a_mistake_is_no_rejection():
    model = CPRWrapper(Line(), radius=0.1, steps=4, step_size=0.05)
    x = torch.tensor([[0.2], [0.45], [0.55], [0.8]], dtype=torch.float64)
    y = torch.zeros(4, dtype=torch.int64)
    target = to_foolbox(model)
    assert target.bounds == (0, 1)
    outputs = target(x)
    assert outputs.argmax(dim=1).tolist() == [0, 2, 2, 1]
    wrong = adapter.AcceptedMisclassification(y)(x, outputs)
    assert wrong.tolist() == [False, False, False, True]
    assert adapter.Rejected()(x, outputs).tolist() == [False, True, True, False]
    # Foolbox's own criterion takes the rejections for successes.
    naive = foolbox.criteria.Misclassification(y)(x, outputs)
    assert naive.tolist() == [False, True, True, True]


@pytest.mark.parametrize(("goal", "beyond"), [(REJECTED, -0.05), (MISTAKE, 0.05)])
def test_the_smallest_perturbations_are_those_of_the_plane(goal, beyond):
    model = plane()
    x, y = images(model, 5, 2)
    needed = Plane.distance(x).abs() / 1.4 + beyond
    attack = attacks.LinfDeepFoolAttack(steps=30)
    points = run(FoolboxAttack(attack, goal=goal), model, x, y)
    assert reached(model, points, y, goal).all()
    length = (points - x).abs().amax(dim=1)
    assert (length >= needed).all()
    assert (length <= 1.02 * needed + 0.002).all()  # it overshoots by 2 %, and adds 0.0001


def test_attacks_that_follow_gradients_need_to_know_the_reject_column():
    model = curved()
    x, y = images(model, 3)
    target = to_foolbox(model, goal=REJECTED)
    for attack in (attacks.LinfPGD(steps=1), attacks.LInfFMNAttack(steps=1)):
        with pytest.raises(ValueError, match=r"expected Rejected\(labels, num_classes\)"):
            attack(target, x, adapter.Rejected(), epsilons=0.1)
        attack(target, x, adapter.Rejected(y, CLASSES), epsilons=0.1)
    assert (target.criterion(x, y).target_classes.raw == CLASSES).all()
    assert repr(adapter.Rejected()) == "Rejected()"


def test_criteria_can_be_pickled():
    y = torch.tensor([1, 0])
    for criterion in (adapter.AcceptedMisclassification(y), adapter.Rejected(y, 3)):
        again = pickle.loads(pickle.dumps(criterion))
        assert type(again) is type(criterion)
        columns = torch.eye(4)[[3, 2]]
        assert torch.equal(again(y, columns), criterion(y, columns))


def test_without_foolbox_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    spec = importlib.util.spec_from_file_location("adapter_without_foolbox", adapter.__file__)
    with pytest.raises(ModuleNotFoundError, match="pip install foolbox"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_foolbox_model_leaves_the_network_alone():
    model = curved()
    x, y = images(model, 3)
    target = to_foolbox(model, device="meta")  # its .to(device) must not reach the network
    assert all(p.device.type == "cpu" for p in model.parameters())
    target = to_foolbox(model)
    attacks.LinfPGD(steps=2)(target, x, target.criterion(x, y), epsilons=0.1)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


# Foolbox's attacks as ours


def test_images_that_reach_the_goal_already_are_left_as_they_are():
    model = curved()
    x = pixels(30)
    rejected = model.predict(x) == REJECT
    y = (model(x).predicted + 1) % CLASSES
    points = run(FoolboxAttack(ATTACKS["LinfPGD"], goal=REJECTED), model, x, y)
    assert torch.equal(points[rejected], x[rejected])
    points = run(FoolboxAttack(ATTACKS["LinfPGD"]), model, x, y)
    assert torch.equal(points[~rejected], x[~rejected])
    assert not torch.equal(points[rejected], x[rejected])
    # Nothing is left to do, and no start to look for.
    some, labels = x[~rejected], y[~rejected]
    assert torch.equal(run(FoolboxAttack(ATTACKS["Boundary"]), model, some, labels), some)


def test_the_closest_success_on_the_way_is_proposed():
    # Steps of 0.12 from 0.2 go through the zone of rejection, 0.4 to 0.6, and back into it or out.
    model = CPRWrapper(Line(), radius=0.1, steps=4, step_size=0.05)
    x, y = torch.tensor([[0.2]], dtype=torch.float64), torch.tensor([0])
    for steps in (2, 3, 4, 5):
        attack = attacks.LinfPGD(steps=steps, abs_stepsize=0.12, random_start=False)
        points = run(FoolboxAttack(attack, goal=REJECTED), model, x, y, 0.8)
        assert torch.allclose(points, torch.full_like(x, 0.44))
    mistake = attacks.LinfPGD(steps=5, abs_stepsize=0.12, random_start=False)
    points = run(FoolboxAttack(mistake), model, x, y, 0.8)
    assert torch.allclose(points, torch.full_like(x, 0.68))


def test_without_a_first_success_an_image_comes_back_and_the_others_are_attacked():
    # Class 1 needs a first pixel above 0.99: random images do not have it, and so class 0 has no
    # start, while class 1 has one at once.
    network = Linear([[-9.0, 0.0], [9.0, 0.0]], [8.91, -8.91])
    model = SelectiveClassifier(network, Confidence(threshold=0.5))
    x = torch.tensor([[0.2, 0.5], [1.0, 0.5]], dtype=torch.float64)
    y = torch.tensor([0, 1])
    attack = FoolboxAttack(attacks.BoundaryAttack(steps=5), directions=3)
    points = run(attack, model, x, y)
    assert torch.equal(points[0], x[0])
    assert reached(model, points, y, MISTAKE).tolist() == [False, True]
    alone = attacks.BoundaryAttack(
        attacks.LinearSearchBlendedUniformNoiseAttack(directions=3, steps=5), steps=5
    )
    target = to_foolbox(model)
    with (
        pytest.warns(UserWarning, match="failed to draw sufficient"),
        pytest.raises(ValueError, match="init_attack failed for 1"),
    ):
        alone(target, x, target.criterion(x, y), epsilons=None)


def test_attacks_without_a_budget_of_their_own_and_repeated_ones():
    model = SelectiveClassifier(Curved(CLASSES, pixels=16, seed=2), Confidence(threshold=0.5))
    x, y = images(model, 4, 1, 4, 4)
    model.base.float()  # Foolbox turns images in single precision only
    x = x.float()
    turn = attacks.SpatialAttack(max_translation=1, num_translations=3, num_rotations=3)
    for attack in (turn, ATTACKS["LinfPGD"].repeat(2), ATTACKS["LInfFMN"].repeat(2)):
        points = run(FoolboxAttack(attack), model, x, y)
        assert points.shape == x.shape
        assert not torch.equal(points, x)
    assert FoolboxAttack(ATTACKS["LinfPGD"].repeat(2)).name == (
        "Foolbox LinfProjectedGradientDescentAttack"
    )


def test_attacks_without_a_distance_of_their_own_run():
    model = curved()
    x, y = images(model, 4)
    attack = attacks.LinearSearchBlendedUniformNoiseAttack(steps=20, directions=50)
    assert reached(model, run(FoolboxAttack(attack), model, x, y), y, MISTAKE).all()


def test_pixels_beyond_the_bounds_by_rounding_are_accepted():
    model = curved()
    x, y = images(model, 2)
    x[0, 0, 0, 0] = 1 + 1e-7
    assert run(FoolboxAttack(ATTACKS["LinfPGD"]), model, x, y).max() <= 1


def test_the_same_seed_gives_the_same_points_and_the_caller_s_randomness_stays():
    model = curved()
    x, y = images(model, 4)
    attack = FoolboxAttack(attacks.LinfPGD(steps=2))
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    python_state, before = random.getstate(), x.clone()
    points = run(attack, model, x, y)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert random.getstate() == python_state
    assert torch.equal(x, before)
    torch.manual_seed(99)
    assert torch.equal(run(attack, model, x, y), points)
    assert not torch.equal(run(attack, model, x, y, seed=1), points)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_random_images_for_a_start_are_as_many_as_asked_for():
    sure = SelectiveClassifier(Linear(torch.zeros(2, 4), [9.0, 0.0]), Confidence(threshold=0.5))
    x, y = pixels(2), torch.zeros(2, dtype=torch.int64)
    attack = attacks.BoundaryAttack(steps=1)
    with count_passes() as few:
        run(FoolboxAttack(attack, directions=3), sure, x, y)
    with count_passes() as more:
        run(FoolboxAttack(attack, directions=10), sure, x, y)
    assert more.forwards - few.forwards == 7 * 2


def test_attacks_can_be_named_by_class_or_alias():
    assert adapter.attack_by_name("LinfPGD").name == "Foolbox LinfProjectedGradientDescentAttack"
    assert isinstance(adapter.attack_by_name("LInfFMNAttack").attack, attacks.LInfFMNAttack)
    with pytest.raises(LookupError, match=r"unknown Foolbox attack 'LinfPDG'.*'LinfPGD'"):
        adapter.attack_by_name("LinfPDG")
    with pytest.raises(ValueError, match="foolbox:VirtualAdversarialAttack cannot be made without"):
        adapter.attack_by_name("VirtualAdversarialAttack")


# Settings


def test_settings_are_checked():
    with pytest.raises(TypeError, match=r"attack: expected a Foolbox attack.*got str"):
        FoolboxAttack("LinfPGD")
    with pytest.raises(ValueError, match="goal: expected ACCEPTED_MISTAKE or REJECTED"):
        FoolboxAttack(ATTACKS["LinfPGD"], goal=Goal.MISTAKE)
    with pytest.raises(
        ValueError, match="directions: expected a whole number of at least 1, got 0"
    ):
        FoolboxAttack(ATTACKS["LinfPGD"], directions=0)
    with pytest.raises(ValueError, match="goal: expected ACCEPTED_MISTAKE or REJECTED"):
        to_foolbox(curved(), goal=Goal.MISTAKE)
    with pytest.raises(ValueError, match="labels: expected None for the goal REJECTED"):
        to_foolbox(curved(), goal=REJECTED, labels=torch.tensor([0]))


def test_inputs_are_checked():
    model = curved()
    x, y = images(model, 2)
    attack = FoolboxAttack(ATTACKS["LinfPGD"])
    with pytest.raises(ValueError, match="eps: expected a finite number"):
        run(attack, model, x, y, -1.0)
    with pytest.raises(ValueError, match="y: expected one label for each"):
        run(attack, model, x, y[:1])
    with pytest.raises(LookupError, match="unknown threat model 'L7'"):
        attack.perturb(model, x, y, 0.1, norm="L7", seed=0, index=torch.arange(2))


def test_an_attack_that_cannot_aim_at_the_goal_is_named():
    model = SelectiveClassifier(Curved(outputs=CLASSES), Confidence(threshold=0.1))
    attack = FoolboxAttack(attacks.FGSM(), goal=REJECTED)
    x = pixels(2)
    text = "Foolbox LinfFastGradientAttack, goal 'rejected': unsupported criterion"
    with pytest.raises(ValueError, match=text):
        attack.perturb(
            model, x, model(x).predicted, 0.1, norm="Linf", seed=0, index=torch.arange(2)
        )
