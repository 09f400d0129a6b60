"""Models by address: `load("robustbench:Rice2020Overfitting")`.

One file a source: `bundled`, `local`, `robustbench`, and `timm`, which also serves `hf-hub`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpr_wrap import rules  # noqa: F401  (enters the rules that addresses and callers name)
from cpr_wrap.selective import RejectionRule, SelectiveClassifier, rule_config, rule_from_config
from cpr_wrap.zoo import bundled, local, robustbench, timm  # noqa: F401  (enter themselves)
from cpr_wrap.zoo.checks import check_network, probe_images
from cpr_wrap.zoo.model import ZOOS, Normalize, Options, ZooModel, parse_address

__all__ = [
    "ZOOS",
    "Normalize",
    "Options",
    "ZooModel",
    "check_network",
    "load",
    "load_network",
    "parse_address",
    "wrap",
]


def load_network(
    address: str | os.PathLike[str],
    *,
    pretrained: bool = True,
    model_dir: str | os.PathLike[str] | None = None,
    network: str | nn.Module | None = None,
    network_settings: Mapping[str, Any] | None = None,
) -> ZooModel:
    """Load a network and what its source knows about it.

    Args:
        address: `robustbench:…`, `timm:…`, `hf-hub:…`, `local:…` or `bundled:…`.
        pretrained: False builds the network without its weights.
        model_dir: Where the source's weight files are or go, if not in its usual place.
        network: For a local file of weights: a name in `NETWORKS`, or a module (copied).
        network_settings: For a network given by name, or timm's `create_model`.
    """
    source, name = parse_address(address)
    options = Options(
        pretrained=pretrained,
        model_dir=None if model_dir is None else Path(model_dir),
        network=network,
        network_settings=dict(network_settings or {}),
    )
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn before they are loaded
        return ZOOS[source](name, options)


def load(
    address: str | os.PathLike[str],
    rule: str | RejectionRule | None = None,
    *,
    pretrained: bool = True,
    model_dir: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    network: str | nn.Module | None = None,
    network_settings: Mapping[str, Any] | None = None,
    **rule_settings: Any,
) -> SelectiveClassifier:
    """Load a model and make it a selective classifier.

    Args:
        address: `robustbench:cifar10/Linf/Rice2020Overfitting`, `timm:resnet18.a1_in1k`,
            `hf-hub:owner/name`, `local:folder`, `local:weights.pt` or `bundled:name`.
        rule: A name in `RULES`, or a rule. Without it the rule the model was saved with, or else
            consistent-prediction rejection.
        pretrained: False builds the network without its weights.
        model_dir: Where the source's weight files are or go, if not in its usual place.
        device: Where to put the model; without it, where the source put it.
        network: For a local file of weights: a name in `NETWORKS`, or a module (copied).
        network_settings: For a network given by name.
        **rule_settings: Settings of the rule, e.g. `radius=0.1`.

    Example:
        >>> model = load("timm:test_vit", rule="confidence", threshold=0.5, pretrained=False)
        >>> model.rule.threshold
        0.5
    """
    rule = _named(rule, rule_settings)
    found = load_network(
        address,
        pretrained=pretrained,
        model_dir=model_dir,
        network=network,
        network_settings=network_settings,
    )
    return wrap(found, rule, device=device, **({} if rule else rule_settings))


def wrap(
    found: ZooModel,
    rule: str | RejectionRule | None = None,
    *,
    device: str | torch.device | None = None,
    **rule_settings: Any,
) -> SelectiveClassifier:
    """Make a loaded network a selective classifier; the second half of `load`.

    Args:
        found: From `load_network`.
        rule: See `load`.
        device: See `load`.
        **rule_settings: See `load`.
    """
    rule = _named(rule, rule_settings)
    if rule is None:
        own = {"name": "cpr"} if found.rule is None else rule_config(found.rule)
        rule = rule_from_config({**own, **rule_settings})
    if found.input_shape is not None:
        images = probe_images(found.network, found.input_shape)
        check_network(found.network, images, found.num_classes, rule.extra_outputs)
    model = SelectiveClassifier(found.network, rule, found.source)
    return model if device is None else model.to(device)


def _named(rule: str | RejectionRule | None, settings: Mapping[str, Any]) -> RejectionRule | None:
    """The rule a caller asked for, or None if the model's own is wanted."""
    if isinstance(rule, str):
        return rule_from_config({"name": rule, **settings})
    if rule is not None and settings:
        raise TypeError(
            f"rule: expected a rule's name beside the settings {', '.join(settings)}, got a rule, "
            "which has its own"
        )
    return rule
