"""Attacks that find less than they should are wrong: what each must reach, on real networks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpr_wrap import CPRWrapper, load, load_data
from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.attacks.donors import Donors
from cpr_wrap.attacks.ensemble import Quick, Standard, climb
from cpr_wrap.attacks.paper import Paper
from cpr_wrap.data import donor_pool
from cpr_wrap.engine.block import Block, rank_targets
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.geometry import threat
from cpr_wrap.metrics import Origin
from cpr_wrap.noise import keys
from cpr_wrap.objective import Aim, Goal, Targets, log_prob
from cpr_wrap.rules import Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.solver import PGD, ascend
from tests.real import foolbox_cifar10, resnet18

EPS = 0.3
CPR = Consistency(radius=0.1, steps=20, step_size=0.01)


@pytest.fixture(scope="module")
def bundled():
    data = load_data("mnist", "robust", num=12)
    return load("bundled:mnist-compact-at", rule=CPR), data.images, data.labels


def block_of(model, x, y, eps):
    block = Block(model, x, y, torch.arange(len(x)), eps=eps, norm="Linf", batch_size=128)
    block.judge_clean()
    rank_targets(block, 9)
    return block


def objectives():
    for rule in (CPR, Confidence(threshold=0.9)):
        for goal, listed in (
            (Goal.REJECTED, rule.inner),
            (Goal.ACCEPTED_MISTAKE, rule.outer),
        ):
            for objective in listed:
                yield pytest.param(rule, goal, objective, id=f"{rule.name}-{objective.name}")


@pytest.mark.parametrize(("rule", "goal", "objective"), objectives())
def test_every_attack_beats_noise_of_the_same_norm(bundled, rule, goal, objective):
    model, x, y = bundled[0].with_rule(rule), bundled[1][:6], bundled[2][:6]
    block = block_of(model, x, y, EPS)
    target = block.order[:, 0] if objective.targets is not Targets.NONE else y
    reached = []
    attack = Attack(objective=objective, goal=goal, steps=10, step=1 / 3, targets=1)
    cheap = rule.stand_in()

    def value(points):
        with torch.no_grad():
            return climb(points)

    def climb(z):
        view = cheap.view(model, z, verdict=False, path=objective.path)
        return torch.stack(objective.terms(replace(view, aim=Aim(y, target)))).sum(dim=0)

    found = ascend(climb, x, EPS, PGD(steps=10, step_size=0.1, momentum=0.75, keep="best"))
    for draw in range(3):
        key = keys(draw, torch.arange(len(x)))
        noisy = threat("Linf").project(x + threat("Linf").uniform_offset(x, EPS, key), x, EPS)
        assert value(found).mean() > value(noisy).mean()
        selection = model.judge(noisy)
        reached.append(goal.reached(selection.predicted, selection.accepted, y))
    run_stage(block, attack, seed=0)
    lucky = torch.stack(reached).any(dim=0)
    assert int(block.found[goal].known.sum()) >= int(lucky.sum())


def test_the_adaptive_ensemble_breaks_what_plain_pgd_does_not():
    data = load_data("mnist", "robust", num=4)
    rule = Consistency(radius=0.05, steps=10, step_size=0.01)
    model = load("bundled:mnist-compact-standard", rule=rule)
    x, y, eps = data.images, data.labels, 0.25
    block = block_of(model, x, y, eps)
    plain = ascend(lambda z: -log_prob(model.logits(z), y), x, eps, PGD(steps=40, step_size=0.01))
    everyone = torch.arange(len(x))
    block.consider(everyone, plain, Goal.ACCEPTED_MISTAKE, eps, Origin(attack="PGD"))
    by_plain = block.found[Goal.ACCEPTED_MISTAKE].known
    curve = robustness_curve(model, x, y, eps, budget="quick")
    assert int((curve.records.outer_broken & ~by_plain).sum()) > 0
    assert int(curve.records.outer_broken.sum()) >= int(by_plain.sum())


def broken_by(model, data, eps, stage, donors=None):
    block = block_of(model, data.images, data.labels, eps)
    block.donors = donors
    run_stage(block, stage, seed=0)
    return int(block.found[Goal.ACCEPTED_MISTAKE].known.sum())


def test_donors_and_smoothed_gradients_break_what_exact_gradients_do_not():
    data, eps = load_data("mnist", "test", indices=[9001, 9003]), 0.4
    model = load("bundled:mnist-compact-at", rule=CPR)
    pool = donor_pool("mnist", 100)
    donors = Donors(pool.images, pool.labels)
    smooth = climb(CPR, "")
    assert broken_by(model, data, eps, smooth, donors) > broken_by(
        model, data, eps, replace(smooth, gradient="exact"), donors
    )


@pytest.mark.slow
def test_cpr_on_a_larger_natural_network_is_broken_on_every_image():
    x, y = foolbox_cifar10()
    few, eps = slice(0, 5), 8 / 255
    model = CPRWrapper(resnet18(), radius=0.0055, steps=10, step_size=0.001)
    block = block_of(model, x[few], y[few], eps)
    for stage in Quick().stages(model.rule, eps):
        if isinstance(stage, Attack) and stage.goal is Goal.ACCEPTED_MISTAKE:
            run_stage(block, stage, seed=0)
    assert block.found[Goal.ACCEPTED_MISTAKE].known.all()


class Grid:
    """Inner attacks at each of the paper's alphas, as many iterations as the search can afford."""

    name = "grid"

    def stages(self, rule, eps):
        paper = Paper(steps=3, random_starts=0, step_sizes=(0.1,), autoattack=None)
        return tuple(s for s in paper.stages(rule, eps) if s.name in ("LCIA", "CLCIA"))


@pytest.mark.slow
def test_one_search_finds_no_fewer_errors_than_a_grid_of_alphas_at_the_same_cost(bundled):
    data = load_data("mnist", "robust", num=100)
    search = robustness_curve(bundled[0], data.images, data.labels, EPS, budget="quick")
    grid = robustness_curve(bundled[0], data.images, data.labels, EPS, budget=Grid())
    # The search's passes include its outer attack; the grid has none to pay for.
    spent = [c.passes_per_image for c in (search, grid)]
    assert spent[0] <= spent[1]
    for alpha in search.alphas:
        assert search.error_at(alpha) >= grid.error_at(alpha)
    print({a: (search.error_at(a), grid.error_at(a)) for a in search.alphas}, spent)


class Refuses(torch.nn.Module):
    """A network that cannot take an empty batch, as many cannot."""

    def __init__(self):
        super().__init__()
        self.training = False

    def forward(self, x):
        assert len(x)
        lead = x.flatten(1).mean(dim=1)
        return torch.stack([lead, -lead], dim=1)


@pytest.mark.parametrize("budget", [Quick(), Standard()])
def test_no_network_is_asked_about_no_images(budget):
    """Every image is broken from the start, so that no attack has anything to do."""
    x, y = torch.full((2, 1, 4, 4), 0.5), torch.ones(2, dtype=torch.int64)
    for rule in (Confidence(threshold=0.1), CPR):
        model = SelectiveClassifier(Refuses(), rule)
        curve = robustness_curve(model, x, y, 0.1, budget=budget)
        assert curve.records.outer_broken.all()
