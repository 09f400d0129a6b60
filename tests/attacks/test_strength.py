"""Attacks that find less than they should are wrong: what each must reach, on real networks."""

from __future__ import annotations

import pytest
import torch

from cpr_wrap import CPRWrapper, load, load_data
from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.attacks.ensemble import Paper, Quick, Standard
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.evaluation.block import Block, Origin, rank_targets
from cpr_wrap.evaluation.engine import run_stage
from cpr_wrap.geometry import ball
from cpr_wrap.noise import keys
from cpr_wrap.objective import Goal, Targets, log_prob
from cpr_wrap.rules import Confidence, Consistency
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
            (Goal.ACCEPTED_MISTAKE, (*rule.outer, *rule.extra_outer)),
        ):
            for objective in listed:
                yield pytest.param(rule, goal, objective, id=f"{rule.name}-{objective.name}")


@pytest.mark.parametrize(("rule", "goal", "objective"), objectives())
def test_every_attack_beats_noise_of_the_same_norm(bundled, rule, goal, objective):
    model, x, y = bundled[0].with_rule(rule), bundled[1][:6], bundled[2][:6]
    block = block_of(model, x, y, EPS)
    target = block.order[:, 0] if objective.targets is not Targets.NONE else y
    reached = []
    attack = Attack(objective=objective, goal=goal, iterations=10, step=1 / 3, targets=1)
    cheap = rule.stand_in()

    def value(points):
        with torch.enable_grad():
            z = points.detach().requires_grad_()
            view = cheap.view(model, z, shadow=objective.shadow)
        terms = objective.terms(view, y, target)
        return torch.stack([term.detach() for term in terms]).sum(dim=0)

    def climb(z):
        view = cheap.view(model, z, shadow=objective.shadow)
        return torch.stack(objective.terms(view, y, target)).sum(dim=0)

    found = ascend(climb, x, EPS, PGD(steps=10, step_size=0.1, momentum=0.75, keep="best"))
    for draw in range(3):
        key = keys(draw, torch.arange(len(x)))
        noisy = ball("Linf").project(x + ball("Linf").uniform_offset(x, EPS, key), x, EPS)
        assert value(found).mean() > value(noisy).mean()
        selection = model.judge(noisy)
        reached.append(goal.reached(selection.predicted, selection.accepted, y))
    run_stage(block, attack, seed=0)
    lucky = torch.stack(reached).any(dim=0)
    assert int(block.found[goal].known.sum()) >= int(lucky.sum())


def test_the_adaptive_ensemble_breaks_what_plain_pgd_does_not():
    data = load_data("mnist", "robust", num=24)
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


def test_where_the_stand_in_is_too_kind_the_rule_itself_leads():
    data, eps = load_data("mnist", "robust", num=4), 0.3
    model = load("bundled:mnist-compact-standard", radius=0.1, steps=20, step_size=0.01)
    broken = []
    for name in ("CHCMOA", "CHCMOA-true"):
        block = block_of(model, data.images, data.labels, eps)
        (stage,) = (s for s in Standard().stages(model.rule, eps) if s.name == name)
        run_stage(block, stage, seed=0)
        broken.append(int(block.found[Goal.ACCEPTED_MISTAKE].known.sum()))
    assert broken[0] < broken[1]


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
        paper = Paper(iterations=3, random_starts=0, step_sizes=(0.1,), autoattack=None)
        return tuple(s for s in paper.stages(rule, eps) if s.name in ("LCIA", "CLCIA"))


@pytest.mark.slow
def test_one_search_finds_no_fewer_errors_than_a_grid_of_alphas_at_the_same_cost(bundled):
    data = load_data("mnist", "robust", num=100)
    search = robustness_curve(bundled[0], data.images, data.labels, EPS, budget="quick")
    grid = robustness_curve(bundled[0], data.images, data.labels, EPS, budget=Grid())
    # The search's passes include its outer attack; the grid has none to pay for.
    spent = [c.details["passes_total"]["per_image"] for c in (search, grid)]
    assert spent[0] <= spent[1]
    for alpha in search.alphas:
        assert search.error_at(alpha) >= grid.error_at(alpha)
    print({a: (search.error_at(a), grid.error_at(a)) for a in search.alphas}, spent)
