from __future__ import annotations

import copy
import json
import pickle
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_model
from torch import nn
from torch.utils._pytree import tree_map

from cpr_wrap.objective import low_confidence
from cpr_wrap.rule import RejectionRule, register_rule, rule_config, rule_from_config
from cpr_wrap.rules import AcceptAll, Confidence, Consistency, CPRWrapper, RejectClass
from cpr_wrap.selective import REJECT, Selection, SelectiveClassifier

from .toys import Curved, Line, Linear, pixels


class Broken(nn.Module):
    """Gives back whatever it was made with."""

    def __init__(self, answer) -> None:
        super().__init__()
        self.answer = answer
        self.eval()

    def forward(self, x):
        return self.answer


def confident(threshold=0.7):
    return SelectiveClassifier(Line(slope=5), Confidence(threshold=threshold))


def test_labels_are_predictions_or_reject():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    selection = Selection(logits, torch.tensor([True, True, False]), torch.zeros(3))
    assert selection.predicted.tolist() == [0, 1, 1]
    assert selection.labels.tolist() == [0, 1, REJECT]
    assert REJECT == -1


def test_accepted_from_the_threshold_on():
    # Line(5) has p = sigmoid(10 (x - 0.5)); with equality accepted.
    x = torch.tensor([[0.5], [0.6], [0.1]], dtype=torch.float64)
    model = confident(threshold=float(confident()(x).score[1]))
    selection = model(x)
    assert torch.allclose(selection.score, torch.tensor([0.0, 1.0, 4.0]).double().sigmoid())
    assert selection.accepted.tolist() == [False, True, True]
    assert model.predict(x).tolist() == [REJECT, 1, 0]


def test_logits_and_outputs_are_differentiable_and_extra_columns_are_cut_off():
    model = SelectiveClassifier(Linear([[1.0], [2.0], [3.0]], [0.0, 0, 0]), RejectClass())
    x = torch.tensor([[0.5]], dtype=torch.float64, requires_grad=True)
    assert model.outputs(x).tolist() == [[0.5, 1.0, 1.5]]
    assert model.logits(x).tolist() == [[0.5, 1.0]]
    (gradient,) = torch.autograd.grad(model.logits(x).sum(), x)
    assert gradient.item() == 3


# What may surround a call, and what a call must leave alone.


def answers(model, x):
    selection = model(x)
    return selection.logits, selection.accepted, selection.score


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_right_without_grad_mode(around, inside, norm):
    model = CPRWrapper(Curved(), radius=0.3, steps=5, step_size=0.1, norm=norm)
    x = pixels(40)
    expected = answers(model, x)
    assert 0 < expected[1].sum() < 40
    with around():
        given = pixels(40) if inside else x  # a tensor made inside is an inference tensor
        got = answers(model, given)
        assert not torch.is_grad_enabled()
        columns = model.as_logits("reject-column")(given)
    for one, other in zip(expected, got, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(columns.argmax(1) == 3, ~expected[1])


def test_the_answer_carries_no_graph_even_where_the_input_does():
    model = CPRWrapper(Curved(), radius=0.3, steps=2, step_size=0.2)
    x = pixels(3).requires_grad_()
    assert not any(part.requires_grad for part in answers(model, x))
    assert x.grad is None
    assert x.requires_grad


def state_of(model, x):
    return (
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [p.requires_grad for p in model.parameters()],
        [m.training for m in model.modules()],
        [(name, t.clone(), t.device) for name, t in model.state_dict().items()],
        x.clone(),
        torch.get_rng_state(),
        np.random.get_state()[1].copy(),
        random.getstate(),
    )


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_leaves_everything_as_it_was():
    base = nn.Sequential(
        nn.Conv2d(1, 4, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).eval()
    base[0].bias.requires_grad_(False)
    base[0].weight.grad = torch.ones_like(base[0].weight)
    model = CPRWrapper(base, radius=0.1, steps=3, step_size=0.1)
    x = pixels(6).float()
    before = state_of(model, x)
    answers(model, x)
    model.as_logits("reject-column")(x)
    assert same(before, state_of(model, x))


def test_wrapping_touches_no_flag_of_the_base():
    base = nn.Sequential(nn.Linear(1, 2)).eval()
    model = SelectiveClassifier(base, AcceptAll())
    assert not model.training
    assert [m.training for m in base.modules()] == [False, False]


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_the_answer_does_not_depend_on_the_batch(norm):
    model = CPRWrapper(Curved(), radius=0.3, steps=6, step_size=0.08, norm=norm)
    x = pixels(30)
    whole = answers(model, x)
    alone = [
        torch.cat(parts) for parts in zip(*(answers(model, row[None]) for row in x), strict=True)
    ]
    turned = [part.flip(0) for part in answers(model, x.flip(0))]
    for one, other, third in zip(whole, alone, turned, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_the_answer_is_the_same_twice():
    model = CPRWrapper(Curved(), radius=0.3, steps=6, step_size=0.08)
    for one, other in zip(answers(model, pixels(9)), answers(model, pixels(9)), strict=True):
        assert torch.equal(one, other)


# Plain modules for other tools.


def test_base_logits_are_the_networks_own():
    model = confident()
    x = pixels(7, 1).requires_grad_()
    plain = model.as_logits()
    assert torch.equal(plain(x), model.base(x))
    (gradient,) = torch.autograd.grad(plain(x)[:, 1].sum(), x)
    assert torch.equal(gradient, torch.full_like(x, 5))
    assert not plain.training


@pytest.mark.parametrize("scale", [1.0, 1e9, 1e-9, -1e9])
def test_reject_column_wins_exactly_where_rejected(scale):
    class Shifted(Line):
        def forward(self, x):
            return super().forward(x) + scale  # the same probabilities, logits of another size

    model = SelectiveClassifier(Shifted(slope=5, dtype=torch.float32), Confidence(threshold=0.7))
    x = pixels(50, 1).float()
    columns = model.as_logits("reject-column")(x)
    labels = model.predict(x)
    assert columns.shape == (50, 3)
    assert torch.equal(columns[:, :2], model.logits(x))
    assert torch.equal(torch.where(columns.argmax(1) == 2, REJECT, columns.argmax(1)), labels)
    if scale == 1.0:
        assert 0 < (labels == REJECT).sum() < 50


def test_an_unknown_mode_is_named():
    with pytest.raises(ValueError, match="mode: expected one of base, reject-column, got 'both'"):
        confident().as_logits("both")


# Rules, and the network under another one.


def test_another_rule_on_the_same_network():
    model = SelectiveClassifier(Line(), AcceptAll(), source={"base": "toy:line"})
    other = model.with_rule(Confidence(threshold=0.9))
    assert other.base is model.base
    assert other.rule == Confidence(threshold=0.9)
    assert other.source == model.source
    assert model.rule == AcceptAll()


def test_a_rule_without_attacks_is_refused():
    class Silent(RejectionRule):
        def score(self, model, x, outputs):
            return outputs[:, 0]

    with pytest.raises(TypeError, match="Silent declares no outer attack; a defense enters with"):
        register_rule("silent")(Silent)

    class Half(Silent):
        outer = (low_confidence,)

    with pytest.raises(TypeError, match="Half declares no inner attack"):
        register_rule("half")(Half)


def test_bad_parts_are_named():
    with pytest.raises(TypeError, match=r"base: expected a torch\.nn\.Module, got function"):
        SelectiveClassifier(lambda x: x, AcceptAll())
    with pytest.raises(TypeError, match=r"rule: expected a RejectionRule, .* got 'cpr'"):
        SelectiveClassifier(Line(), "cpr")


def test_training_mode_is_refused_when_wrapping_when_asked_for_and_when_used():
    with pytest.raises(ValueError, match="expected a network in eval mode"):
        SelectiveClassifier(Line().train(), AcceptAll())
    model = SelectiveClassifier(Line(), AcceptAll())
    with pytest.raises(ValueError, match=r"for evaluation; train model\.base"):
        model.train()
    with pytest.raises(ValueError, match=r"for evaluation; train model\.base"):
        model.as_logits().train()
    assert model.eval() is model
    model.base.train()
    with pytest.raises(ValueError, match="expected a network in eval mode"):
        model(pixels(2, 1))


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (torch.zeros(2, 1), r"\(2, 1\)"),
        (torch.zeros(2), r"\(2,\)"),
        (torch.zeros(2, 2, 1, 1), r"\(2, 2, 1, 1\)"),
        ((torch.zeros(2, 2),), "tuple"),
    ],
)
def test_a_network_with_the_wrong_outputs_is_named(answer, got):
    model = SelectiveClassifier(Broken(answer), AcceptAll())
    with pytest.raises(ValueError, match=rf"outputs of shape \(N, 2 or more\) .* got {got}"):
        model(pixels(2, 1))


def test_a_network_without_the_rules_extra_column_is_named():
    model = SelectiveClassifier(Line(), RejectClass())
    with pytest.raises(
        ValueError, match=r"\(N, 3 or more\) .*'rcd' reads 1 extra columns.*\(2, 2\)"
    ):
        model(pixels(2, 1))


def test_a_network_with_too_few_rows_is_named():
    model = SelectiveClassifier(Broken(torch.zeros(1, 3)), AcceptAll())
    with pytest.raises(ValueError, match="expected 2 rows of outputs from the network, got 1"):
        model(pixels(2, 1))


def test_images_are_checked_before_the_network_sees_them():
    model = SelectiveClassifier(Broken(None), AcceptAll())
    with pytest.raises(ValueError, match=r"expected pixels in \[0, 1\]"):
        model(pixels(2, 1) * 255)


# On disk.

RULES_TO_SAVE = [
    Consistency(radius=0.02, steps=3, step_size=0.01, norm="L2", keep="best"),
    Confidence(threshold=0.75),
    AcceptAll(),
]


@pytest.mark.parametrize("rule", RULES_TO_SAVE, ids=lambda rule: rule.name)
def test_a_rule_survives_its_description(rule):
    description = json.loads(json.dumps(rule_config(rule)))
    assert description["name"] == rule.name
    assert rule_from_config(description) == rule


def test_bad_descriptions_are_named():
    with pytest.raises(ValueError, match="a rule's description needs its name, got"):
        rule_from_config({"threshold": 0.5})
    with pytest.raises(LookupError, match=r"unknown rejection rule 'cpq'\. Did you mean 'cpr'"):
        rule_from_config({"name": "cpq"})
    with pytest.raises(ValueError, match="rule 'confidence' has no setting 'radius'"):
        rule_from_config({"name": "confidence", "radius": 1})
    with pytest.raises(ValueError, match=r"no setting 'treshold'\. Did you mean 'threshold'"):
        rule_from_config({"name": "confidence", "treshold": 1})
    with pytest.raises(ValueError, match="rule 'cpr' does not take the settings"):
        rule_from_config({"name": "cpr", "radius": "wide"})


@pytest.mark.parametrize("rule", RULES_TO_SAVE, ids=lambda rule: rule.name)
def test_saved_weights_and_rule_give_the_same_answers(rule, tmp_path):
    model = SelectiveClassifier(Curved(seed=1), rule, source={"base": "toy:curved"})
    folder = model.save(tmp_path / "new" / "folder")
    config = json.loads((folder / "config.json").read_text())
    assert config["base"] == "toy:curved"
    base = Curved(seed=2)
    load_model(base, folder / "model.safetensors")
    again = SelectiveClassifier(base, rule_from_config(config["rule"]))
    for one, other in zip(answers(model, pixels(9)), answers(again, pixels(9)), strict=True):
        assert torch.equal(one, other)


def test_shared_weights_can_be_saved(tmp_path):
    base = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).eval()
    base[1].weight = base[0].weight
    SelectiveClassifier(base, AcceptAll()).save(tmp_path)
    other = copy.deepcopy(base)
    nn.init.zeros_(other[0].weight)
    load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other[1].weight, base[0].weight)


def test_a_printed_model_shows_its_rule():
    assert "Confidence(threshold=0.7)" in repr(confident())


def test_an_answer_is_a_plain_value():
    model = CPRWrapper(Line(), radius=0.1, steps=3, step_size=0.05)
    logits, accepted, score = answer = model(torch.tensor([[0.05], [0.45]], dtype=torch.float64))
    assert logits is answer.logits
    assert accepted.tolist() == [True, False]
    assert (score >= 0).tolist() == [True, False]
    for twin in (
        pickle.loads(pickle.dumps(answer)),
        copy.copy(answer),
        copy.deepcopy(answer),
        tree_map(lambda tensor: tensor.clone(), answer),
        answer._replace(logits=logits),
    ):
        assert type(twin) is Selection
        assert torch.equal(twin.labels, answer.labels)
        assert torch.equal(twin.score, score)
