"""What a budget promises to spend at most, on images that it cannot break."""

from __future__ import annotations

import pytest
import torch

from cpr_wrap import BUDGETS, load, load_data, load_network, robustness_curve
from cpr_wrap.attacks.ensemble import MORE_EFFORT
from cpr_wrap.noise import sampled
from cpr_wrap.objective import margin
from cpr_wrap.rules import RULES

NETWORKS = {
    "atrr": "atrr",
    "confidence": "ccat",
    "cpr": "at",
    "none": "at",
    "rcd": "rcd",
    "verified": "ibp",
}
"""The bundled MNIST network of each rule, whose settings are the defaults."""
SHARED = 32  # images that the cap is promised for, over which the checks before it are spread


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "most"), [("quick", 1_000), ("standard", 10_000)])
@pytest.mark.parametrize("rule", NETWORKS)
def test_a_budget_keeps_its_cap_on_images_that_survive(rule, budget, most):
    address = f"bundled:mnist-compact-{NETWORKS[rule]}"
    model = load(address) if rule != "none" else load(address, rule)
    assert model.rule.name == rule
    eps = load_network(address, pretrained=False).eps
    data = load_data("mnist", "robust")
    plan = BUDGETS[budget].stages(model.rule, eps)
    share = next(stage.sample for stage in plan if MORE_EFFORT in stage.name)
    # Of those that get more effort and of those that do not, the image with the largest lead.
    chosen = sampled(data.indices, share)
    with torch.no_grad():
        lead = margin(model.logits(data.images), data.labels)
    rows = [int(lead.where(kind, -torch.inf).argmax()) for kind in (chosen, ~chosen)]
    found = robustness_curve(
        model, data.images[rows], data.labels[rows], eps, budget=budget, indices=data.indices[rows]
    )
    assert not found.records.outer_broken.any()
    effort = sum(stage.passes for stage in found.passes if MORE_EFFORT in stage.attack)
    before = sum(stage.passes for stage in found.passes if stage.attack == "preflight")
    rest = sum(stage.passes for stage in found.passes) - effort - before
    assert rest / len(rows) + effort * share + before / SHARED <= most


def test_every_rule_is_among_them():
    ours = {name for name, kind in RULES.items() if kind.__module__.startswith("cpr_wrap.")}
    assert set(NETWORKS) == ours
