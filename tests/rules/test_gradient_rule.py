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
