"""Models by address: `load("robustbench:Rice2020Overfitting")`.

One file per source: `local`, which also serves `bundled`, `robustbench`, and `timm`, which also
serves `hf-hub`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpr_wrap import rules  # noqa: F401  (enters the rules that addresses and callers name)
from cpr_wrap.rule import DEFAULT_RULE, RejectionRule, find_rule, make_rule, rule_settings
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.zoo import local, robustbench, timm  # noqa: F401  (enter themselves)
from cpr_wrap.zoo.checks import check_network, probe_images
from cpr_wrap.zoo.model import ZOOS, Network, Normalize, Options, ZooModel, parse_address

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
    network: Network | None = None,
    network_settings: Mapping[str, Any] | None = None,
    download: bool = False,
) -> ZooModel:
    """Load a network, with what its source knows about it.

    Args:
        address: `robustbench:…`, `timm:…`, `hf-hub:…`, `local:…` or `bundled:…`.
        pretrained: False builds the network without its weights.
        model_dir: Folder of the source's weight files, if not the default one.
        network: For a local file of weights: a name in `NETWORKS`, a class or function, its address
            `module:name`, or a module, which is copied.
        network_settings: Arguments of that class or function, or of timm's `create_model`.
        download: Whether a saved folder may fetch the description of its base from the Hugging Face
            Hub. Addresses of online sources may always download.

    Example:
        >>> import torch
        >>> found = load_network("bundled:mnist-compact-at")
        >>> found.input_shape, found.num_classes, found.rule.name
        ((1, 28, 28), 10, 'cpr')
        >>> found.network(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    source, name = parse_address(address)
    options = Options(
        pretrained=pretrained,
        model_dir=None if model_dir is None else Path(model_dir),
        network=network,
        network_settings=dict(network_settings or {}),
        download=download,
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
    network: Network | None = None,
    network_settings: Mapping[str, Any] | None = None,
    download: bool = False,
    **rule_settings: Any,
) -> SelectiveClassifier:
    """Load a model as a selective classifier.

    Args:
        address: `robustbench:cifar10/Linf/Rice2020Overfitting`, `timm:resnet18.a1_in1k`,
            `hf-hub:owner/name`, `local:folder`, `local:weights.pt` or `bundled:name`.
        rule: A name in `RULES`, the address `module:name` of a class, or a rule. By default the
            rule that the model was saved with, or else consistent-prediction rejection.
        pretrained: See `load_network`.
        model_dir: See `load_network`.
        device: Device of the model; by default the one that the source uses.
        network: See `load_network`.
        network_settings: See `load_network`.
        download: See `load_network`.
        **rule_settings: Settings of the rule, e.g. `radius=0.1`.

    Example:
        >>> model = load("timm:test_vit", rule="confidence", threshold=0.5, pretrained=False)
        >>> model.rule.threshold
        0.5
    """
    if rule is not None:
        _made(rule, rule_settings)  # what is wrong with it is better said before a download
    found = load_network(
        address,
        pretrained=pretrained,
        model_dir=model_dir,
        network=network,
        network_settings=network_settings,
        download=download,
    )
    return wrap(found, rule, device=device, **rule_settings)


def wrap(
    found: ZooModel,
    rule: str | RejectionRule | None = None,
    *,
    device: str | torch.device | None = None,
    **rule_settings: Any,
) -> SelectiveClassifier:
    """Turn a loaded network into a selective classifier; the second half of `load`.

    Args:
        found: The result of `load_network`.
        rule: See `load`.
        device: See `load`.
        **rule_settings: See `load`.

    Example:
        >>> from cpr_wrap import Confidence, load_network
        >>> model = wrap(load_network("bundled:mnist-compact-at"), Confidence(threshold=0.9))
        >>> model.rule
        Confidence(threshold=0.9)
    """
    rule = _made(rule, rule_settings, found)
    if found.input_shape is not None:
        images = probe_images(found.network, found.input_shape)
        check_network(found.network, images, found.num_classes, rule.extra_outputs)
    model = SelectiveClassifier(found.network, rule, found.source)
    return model if device is None else model.to(device)


def _made(
    rule: str | RejectionRule | None, settings: Mapping[str, Any], found: ZooModel | None = None
) -> RejectionRule:
    """The rule that is asked for: by its name, a rule itself, or None for the network's own."""
    if isinstance(rule, RejectionRule):
        if settings:
            raise TypeError(
                f"rule: expected a rule's name with the settings {', '.join(settings)}, got a "
                "rule, which has its own"
            )
        return rule
    if not (rule is None or isinstance(rule, str)):
        raise TypeError(
            f"rule: expected a rule's name or a rule, e.g. cpr_wrap.Consistency(), got {rule!r:.60}"
        )
    own = None if found is None else found.rule
    if rule is None and own is not None:
        settings = {**rule_settings(own), **settings}
    default = DEFAULT_RULE if own is None else own.name
    name = default if rule is None else find_rule(rule).name
    held = {} if own is None or own.name != name else dict(own.modules())
    held |= {key: value for key, value in settings.items() if isinstance(value, nn.Module)}
    plain = {key: value for key, value in settings.items() if key not in held}
    made = make_rule(name, plain, held or None)
    missing = sorted(set(made.modules()) - set(held))
    if missing and found is not None:
        raise ValueError(
            f"rule {name!r} has networks of its own, {', '.join(missing)}, whose weights are not "
            "known here; pass them, make the rule yourself, or load a saved model"
        )
    return made
