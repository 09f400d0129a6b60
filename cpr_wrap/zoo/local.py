"""Models on disk: a folder written by `SelectiveClassifier.save`, or a file of weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from cpr_wrap.networks import NETWORKS, build_network
from cpr_wrap.selective import rule_from_config
from cpr_wrap.zoo.checkpoint import load_weights
from cpr_wrap.zoo.model import ZOOS, Options, ZooModel, parse_address

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@ZOOS.register("local")
def load_local(name: str, options: Options) -> ZooModel:
    """Load from disk, e.g. `local:runs/mnist` or `local:weights.pt` with a network."""
    path = Path(name).expanduser()
    if path.is_dir():
        return load_saved(path, f"local:{name}", options)
    if not path.exists():
        raise LookupError(f"local:{name}: expected a file of weights or a saved folder, got none")
    network = given_network(options)
    if network is None:
        raise ValueError(
            f"local:{name} is a file of weights and does not say of what network; pass network=, "
            f"a torch.nn.Module or one of {', '.join(NETWORKS)} (--network)"
        )
    if options.pretrained:
        load_weights(network, path)
    return ZooModel(network=network.eval(), address=f"local:{name}", source=_given_source(options))


def load_saved(folder: Path, address: str, options: Options) -> ZooModel:
    """Load a folder with `config.json` and `model.safetensors`."""
    config = read_config(folder)
    rule = rule_from_config(config["rule"]) if config.get("rule") else None
    found = _described(config, folder, options)
    if options.pretrained:
        load_weights(found.network, folder / WEIGHTS)
    known: dict[str, Any] = {
        key: config[key] for key in ("num_classes", "dataset", "norm", "eps") if key in config
    }
    if config.get("input_shape"):
        known["input_shape"] = tuple(config["input_shape"])
    source = {key: value for key, value in config.items() if key not in ("format", "rule")}
    return replace(found, address=address, rule=rule, source=source, **known)


def _described(config: Mapping[str, Any], folder: Path, options: Options) -> ZooModel:
    """Build the network a folder describes, without its weights."""
    network = given_network(options)
    if network is None and config.get("network"):
        network = build_network(config["network"], **config.get("network_settings", {}))
    if network is not None:
        return ZooModel(network=network.eval(), address=str(folder))
    if not config.get("base"):
        raise ValueError(
            f"{folder / CONFIG} names neither a network nor the address of a base, so the weights "
            "cannot be placed; pass network=, the torch.nn.Module that was saved"
        )
    source, name = parse_address(config["base"])
    settings = config.get("network_settings", {})
    return ZOOS[source](name, replace(options, pretrained=False, network_settings=settings))


def read_config(folder: Path) -> dict[str, Any]:
    """Read a saved folder's description."""
    path = folder / CONFIG
    if not path.is_file():
        raise LookupError(f"{folder}: expected {CONFIG} and {WEIGHTS} in it, found no {CONFIG}")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise RuntimeError(f"{path} is damaged: it is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(config).__name__}")
    return config


def given_network(options: Options) -> nn.Module | None:
    """The architecture the caller named or brought; what was brought is copied."""
    if isinstance(options.network, nn.Module):
        return copy.deepcopy(options.network)
    if options.network is None:
        return None
    return build_network(options.network, **options.network_settings)


def _given_source(options: Options) -> Mapping[str, Any]:
    if not isinstance(options.network, str):
        return {}
    return {"network": options.network, "network_settings": dict(options.network_settings)}
