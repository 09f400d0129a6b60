"""A rule whose score differentiates the network: what `needs_gradient` promises holds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from cpr_wrap import RULES, RejectionRule, SelectiveClassifier, register_rule, robustness_curve
from cpr_wrap.evaluation import verify_curve
from cpr_wrap.objective import log_prob, low_score, scored_mistake
from cpr_wrap.testing import check_rule
from tests.toys import Curved, pixels


@pytest.fixture
def flat():
    """Accepts where the network's answer hardly changes with the input."""

    @register_rule("flat")
    @dataclass(frozen=True, kw_only=True)
    class Flat(RejectionRule):
        inner = (low_score,)
        outer = (scored_mistake,)
        needs_gradient = True

        def score(self, view):
            sure = log_prob(view.logits, view.predicted).sum()
            (slope,) = torch.autograd.grad(sure, view.z, create_graph=True)
            return -slope.flatten(1).norm(dim=1)

    yield Flat
    del RULES._entries["flat"]


@pytest.mark.parametrize("budget", ["quick", "standard"])
def test_such_a_rule_is_judged_attacked_and_verified(flat, budget):
    network, x = Curved(outputs=4), pixels(5)
    rule = flat(threshold=-1.5)
    check_rule(rule, network, x)
    model = SelectiveClassifier(network, rule)
    y = model(x).predicted
    assert 0 < int(model(x).accepted.sum()) < 5
    curve = robustness_curve(model, x, y, 0.1, budget=budget)
    check = verify_curve(model, curve)
    assert check.holds, check.problems
    assert curve.error_at(1.0) > curve.error_at(0.0)


@pytest.fixture
def rule_of():
    """Registers a rule that scores by a function of a view."""

    def make(function, **settings):
        @register_rule("odd")
        @dataclass(frozen=True, kw_only=True)
        class Odd(RejectionRule):
            inner = (low_score,)
            outer = (scored_mistake,)
            note: object = None

            def score(self, view):
                return function(view)

        return Odd(**settings)

    yield make
    del RULES._entries["odd"]


@pytest.mark.parametrize(
    "score",
    [lambda view: view.logits.detach().amax(1), lambda view: (view.logits.amax(1) > 0).double()],
    ids=["detached", "a step"],
)
def test_a_score_without_gradient_is_named(rule_of, score):
    network, x = Curved(outputs=4), pixels(3)
    rule = rule_of(score, threshold=-9.0)
    text = "attack SCORED-MISTAKE: objective 'SCORED-MISTAKE' cannot be climbed"
    with pytest.raises(AssertionError, match=text):
        check_rule(rule, network, x)
    model = SelectiveClassifier(network, rule)
    with pytest.raises(RuntimeError, match="no gradient reaches the input: what it reads was"):
        robustness_curve(model, x, model(x).predicted, 0.001, budget="quick")


def test_settings_that_cannot_be_saved_are_named(rule_of):
    rule = rule_of(lambda view: view.logits.amax(1), note={1, 2})
    with pytest.raises(AssertionError, match="saving: expected settings that fit JSON"):
        check_rule(rule, Curved(outputs=4), pixels(3))


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (lambda best: best + 1e-9 * torch.rand_like(best), "the same images got other scores"),
        (lambda best: best + 0.3 * (len(best) > 3), "depends on the batch"),
        (lambda best: best + 5e-4 * (len(best) > 1), "depends on the batch"),
    ],
    ids=["a little random", "larger batches only", "a little"],
)
def test_scores_are_checked_on_all_images_and_more_strictly_than_by_an_evaluation(
    rule_of, odd, text
):
    rule = rule_of(lambda view: odd(view.logits.amax(1).tanh()), threshold=-9.0)
    with pytest.raises(AssertionError, match=f"score: {text}"):
        check_rule(rule, Curved(outputs=4), pixels(6))
