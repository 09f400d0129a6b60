"""What every registered rule must do, with its own attacks, on a network with four pixels."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from cpr_wrap import RULES
from cpr_wrap.objective import Aim, Targets
from cpr_wrap.rules import CPRWrapper
from cpr_wrap.selective import SelectiveClassifier, rule_config, rule_from_config
from cpr_wrap.testing import check_rule
from tests.devices import WrongDeviceError, only_on
from tests.toys import Curved, pixels

SETTINGS = {
    "cpr": {"radius": 0.3, "steps": 5, "step_size": 0.1},
    "confidence": {"threshold": 0.7},
    "atrr": {"threshold": 0.4},
    "verified": {"radius": 0.05},
}
CLASSES = 3
every_rule = pytest.mark.parametrize("name", RULES)


def bounded():
    random = torch.Generator().manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES)]
    network = nn.Sequential(*layers).double().eval()
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    return network


def make(name):
    rule = RULES[name](**SETTINGS.get(name, {}))
    if name == "verified":  # reads the network's layers
        return SelectiveClassifier(bounded(), rule)
    return SelectiveClassifier(Curved(outputs=CLASSES + rule.extra_outputs, seed=2), rule)


def test_the_rules_of_the_paper_are_registered():
    assert {"cpr", "confidence", "rcd", "atrr", "none"} <= set(RULES)
    assert all(RULES[name].name == name for name in RULES)


@every_rule
def test_accepts_some_and_rejects_some(name):
    selection = make(name)(pixels(200))
    assert selection.logits.shape == (200, CLASSES)
    assert selection.accepted.dtype == torch.bool
    assert selection.accepted.any()
    assert selection.accepted.all() != RULES[name].can_reject
    assert torch.equal(selection.accepted, selection.score >= make(name).rule.threshold)
    assert not selection.score.requires_grad


@every_rule
def test_judges_each_image_alone(name):
    model, x = make(name), pixels(20)
    whole = model(x)
    for row in range(20):
        one = model(x[row : row + 1])
        # Products of matrices round differently for other numbers of rows.
        exact = 0 if name != "verified" else 1e-12
        torch.testing.assert_close(one.score, whole.score[row : row + 1], rtol=exact, atol=exact)
        assert torch.equal(one.labels, whole.labels[row : row + 1])


@every_rule
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_right_without_grad_mode(name, around):
    model = make(name)
    expected = model(pixels(20))
    with around():
        got = model(pixels(20))
    assert torch.equal(expected.score, got.score)
    assert torch.equal(expected.labels, got.labels)


@every_rule
def test_comes_with_attacks_that_have_gradients(name):
    model = make(name)
    rule = model.rule
    assert rule.outer
    assert rule.inner or not rule.can_reject
    y = torch.arange(6) % CLASSES
    target = (y + 1) % CLASSES
    for objective in (*rule.inner, *rule.extra_inner, *rule.outer):
        z = pixels(6).requires_grad_()
        view = rule.view(model, z, verdict=objective.score, path=objective.path)
        terms = objective.terms(replace(view, aim=Aim(y, target)))
        assert all(term.shape == (6,) and term.isfinite().all() for term in terms)
        (gradient,) = torch.autograd.grad(torch.stack(terms).sum(), z)
        assert (gradient != 0).any(), objective.name
    assert all(p.grad is None for p in model.parameters())


@every_rule
def test_outer_attacks_never_aim_at_the_true_class(name):
    rule = RULES[name]()
    targets = {objective.targets for objective in rule.outer}
    assert Targets.ALL not in targets


@every_rule
def test_its_view_agrees_with_its_verdict(name):
    model = make(name)
    view = model.rule.view(model, pixels(50).requires_grad_(), path=(1.0,))
    assert torch.equal(view.accepted, model(pixels(50)).accepted)
    assert view.num_classes == CLASSES
    assert view.logits.shape == (50, CLASSES)


@every_rule
def test_keeps_the_contract_that_plug_ins_are_checked_for(name):
    model = make(name)
    check_rule(model.rule, model.base, pixels(6))


@every_rule
def test_survives_its_description(name):
    rule = make(name).rule
    assert rule_from_config(json.loads(json.dumps(rule_config(rule)))) == rule


@every_rule
def test_stand_in_is_of_the_same_kind(name):
    assert type(make(name).rule.stand_in()) is RULES[name]


@every_rule
def test_every_tensor_is_made_on_a_named_device(name):
    model, x = make(name), pixels(3)
    with only_on("cpu"):
        model(x)
        model.as_logits("reject-column")(x)


@every_rule
def test_follows_its_inputs_to_any_device(name):
    model = make(name)
    model.base.to("meta")
    x = torch.empty(3, 1, 2, 2, dtype=torch.float64, device="meta")
    with only_on("meta"):
        selection = model.judge(x)
        view = model.rule.view(model, x.requires_grad_(), path=(1.0,))
    assert {part.device.type for part in (*selection, selection.labels)} == {"meta"}
    assert view.outputs.device.type == "meta"


@pytest.mark.parametrize(
    ("make_tensor", "text"),
    [
        (lambda x: torch.zeros(3), "zeros without device="),
        (lambda x: torch.tensor(3.0), "tensor without device="),
        (lambda x: torch.arange(3, device="cpu"), "arange on cpu, but the inputs are on meta"),
        (lambda x: x.new_zeros(3, device="cpu"), "new_zeros on cpu, but the inputs are on meta"),
        (lambda x: torch.empty(1, device="meta").cpu(), "cpu moves a tensor"),
    ],
)
def test_the_guard_itself_catches_what_it_should(make_tensor, text):
    x = torch.empty(3, device="meta")
    with pytest.raises(WrongDeviceError, match=text), only_on("meta"):
        make_tensor(x)


def test_the_wrapper_is_the_cpr_rule():
    wrapper = CPRWrapper(Curved(seed=2), **SETTINGS["cpr"])
    assert wrapper.rule == make("cpr").rule
    assert torch.equal(wrapper.predict(pixels(9)), make("cpr").predict(pixels(9)))
