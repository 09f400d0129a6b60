"""From a trained network to the model that is saved, for `cpr_wrap.load("local:FOLDER")`."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from cpr_wrap import __version__
from cpr_wrap.calibration import calibrate
from cpr_wrap.rule import ByQuantile
from cpr_wrap.selective import RejectionRule, SelectiveClassifier
from cpr_wrap.training.history import EpochRecord
from cpr_wrap.training.method import AdversarialMethod
from cpr_wrap.training.recipes import Recipe, describe_recipe


def trained_rule(
    recipe: Recipe, network: nn.Module, validation: tuple[Tensor, Tensor] | None
) -> RejectionRule:
    """The rule that a method's network is made for.

    Args:
        recipe: The recipe it was trained with.
        network: The network, in eval mode.
        validation: Images `(N, C, H, W)` and labels `(N,)` to set a threshold on; without them
            a rule that needs one accepts everything until it is calibrated.
    """
    rule = recipe.rule
    if not isinstance(rule.calibrated_by, ByQuantile):
        return rule
    if validation is None:
        warnings.warn(
            f"no validation images: the threshold of rule {rule.name!r} stays {rule.threshold:g}, "
            "which accepts everything; set it with calibrate, or pass validation=",
            stacklevel=2,
        )
        return rule
    model = SelectiveClassifier(network, rule)
    return calibrate(model, *validation, recipe.reject_rate).model.rule


def finished_model(
    recipe: Recipe,
    network: nn.Module,
    validation: tuple[Tensor, Tensor] | None,
    history: Sequence[EpochRecord],
    facts: Mapping[str, Any],
) -> SelectiveClassifier:
    """A trained network with its rule, and as its source all that is known about it.

    Args:
        recipe: How it was trained.
        network: The network, in eval mode.
        validation: Images and labels for the threshold of the rule.
        history: What was measured.
        facts: How to build it again, and what it takes: `network` (a registered name, or None for
            one of the user's own), `network_settings`, `input_shape`, `num_classes`, `dataset`.
    """
    method = recipe.method
    threat = {}
    if isinstance(method, AdversarialMethod):
        threat = {"norm": method.norm, "eps": method.eps}
    source = {
        **facts,
        **threat,
        "recipe": describe_recipe(recipe),
        "history": [asdict(record) for record in history],
        "versions": {
            "cpr_wrap": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    return SelectiveClassifier(network, trained_rule(recipe, network, validation), source)
