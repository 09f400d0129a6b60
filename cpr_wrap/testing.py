"""Checks for authors of rules: does a rule do what the engine relies on?"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from cpr_wrap.evaluation.preflight import preflight
from cpr_wrap.meter import count_passes
from cpr_wrap.objective import Aim, Objective, Targets
from cpr_wrap.rule import RULES, RejectionRule, rule_config
from cpr_wrap.selective import CONFIG, Selection, SelectiveClassifier, load_rule

_NEAR = 1e-4


def check_rule(rule: RejectionRule, network: nn.Module, images: Tensor) -> None:
    """Check that a rule fulfills its contract; the first violation is an error.

    Verdicts must be deterministic and independent of the batch. The declared cost must be the true
    one. Every goal must have an attack whose gradient reaches the input. Saving and loading must
    keep all settings.

    Args:
        rule: The rule, registered, with settings that reject some of the images or none.
        network: A network for the rule, in eval mode.
        images: A few images `(N, ...)` in [0, 1], at least 2.

    Raises:
        AssertionError: What does not hold, and what was expected.

    Example:
        >>> import torch
        >>> from cpr_wrap import Confidence
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
        >>> check_rule(Confidence(threshold=0.4), net, torch.rand(3, 1, 2, 2))
    """
    _must(RULES.get(rule.name) is type(rule), f"register_rule was not used on {type(rule)}")
    _must(len(images) >= 2, f"at least 2 images are needed, got {len(images)}")
    model = SelectiveClassifier(network, rule)
    try:
        preflight(model, images)
    except (ValueError, RuntimeError) as error:
        raise AssertionError(f"an evaluation refuses it: {error}") from error
    with count_passes() as passes:
        first = model(images)
    _check_scores(model, images, first.score)
    for kind in ("forwards", "backwards"):
        spent, told = getattr(passes, kind) / len(images), getattr(rule.cost, kind)
        _must(spent == told, f"cost: declares {told} {kind} per verdict, but takes {spent:g}")
    _must(rule.reach >= 0, f"reach: expected at least 0, got {rule.reach}")
    _check_attacks(model, images, first)
    phrases = rule.explain(model.look(images))
    _must(
        len(phrases) == len(images), f"explain: expected {len(images)} phrases, got {len(phrases)}"
    )
    _must(bool(rule.describe()), "describe: expected a phrase")
    _check_saving(model)


def _must(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


def _check_scores(model: SelectiveClassifier, x: Tensor, score: Tensor) -> None:
    """More strictly than an evaluation does, and on all images."""
    _must(bool(score.isfinite().all()), "score: expected finite numbers")
    _must(torch.equal(score, model(x).score), "score: the same images got other scores")
    alone = torch.cat([model(row).score for row in x.split(1)])
    gap = float((score - alone).abs().max() / score.abs().max().clamp_min(1e-6))
    _must(gap <= _NEAR, f"score: depends on the batch, by {gap:.2g} of the largest score")
    with torch.inference_mode():
        inside = model(x).score
    _must(torch.allclose(score, inside), "score: differs under inference_mode")


def _check_attacks(model: SelectiveClassifier, x: Tensor, answer: Selection) -> None:
    rule = model.rule
    for kind in ["outer", "inner"] if rule.can_reject else ["outer"]:
        _must(bool(getattr(rule, kind)), f"{kind}: expected at least one objective")
        for objective in getattr(rule, kind):
            _check_objective(model, x, objective, answer.predicted, answer.logits.shape[1])


def _check_objective(
    model: SelectiveClassifier, x: Tensor, objective: Objective, label: Tensor, classes: int
) -> None:
    target = (label + 1) % classes if objective.targets is not Targets.NONE else label
    z = x.detach().clone().requires_grad_()
    view = model.rule.view(model, z, verdict=objective.score, path=objective.path)
    name = f"attack {objective.name}"
    try:
        value, gradient = objective.ascent(view, Aim(label, target))
    except RuntimeError as error:
        raise AssertionError(f"{name}: {error}") from error
    _must(value.shape == (len(x),), f"{name}: expected one value per image, got {value.shape}")
    _must(bool(gradient.isfinite().all()), f"{name}: the gradient is not finite")
    _must(bool((gradient != 0).any()), f"{name}: no gradient reaches the input")


def _check_saving(model: SelectiveClassifier) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save(folder)
        except TypeError as error:
            raise AssertionError(f"saving: expected settings that fit JSON: {error}") from error
        config = json.loads((Path(folder) / CONFIG).read_text())
        loaded = load_rule(Path(folder), config["rule"])
        own = model.rule.modules()
        _must(rule_config(loaded) == rule_config(model.rule), "saving: other settings came back")
        _must(set(loaded.modules()) == set(own), "saving: other networks of the rule came back")
        for name, network in own.items():
            pair = (network, loaded.modules()[name])
            states = zip(*(each.state_dict().values() for each in pair), strict=True)
            same = all(torch.equal(a, b) for a, b in states)
            _must(same, f"saving: other weights of {name!r} came back")
    _must(replace(model.rule) == model.rule or bool(own), "settings: expected a frozen dataclass")
