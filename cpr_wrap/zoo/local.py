"""Models on disk: a folder written by `SelectiveClassifier.save`, or a file of weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpr_wrap._address import call, trusted
from cpr_wrap.networks import NETWORKS, build_network
from cpr_wrap.rule import RULES, find_rule
from cpr_wrap.selective import RejectionRule, load_rule
from cpr_wrap.zoo.checkpoint import load_weights, one_line
from cpr_wrap.zoo.config import CONFIG, WEIGHTS, read_config
from cpr_wrap.zoo.model import ZOOS, Network, Options, ZooModel, parse_address

_ALWAYS_ROOM = 2**26  # weights: a quarter of a gigabyte


@ZOOS.register("local")
def load_local(name: str, options: Options) -> ZooModel:
    """Load from disk, e.g. `local:runs/mnist` or `local:weights.pt` with a network."""
    path = Path(name).expanduser()
    if path.is_dir():
        return load_saved(path, f"local:{name}", options)
    if not path.exists():
        raise LookupError(f"local:{name}: expected a file of weights or a saved folder, got none")
    if options.network is None:
        raise ValueError(
            f"local:{name} is a file of weights and does not say of what network; pass network=, "
            f"a torch.nn.Module, module:Class or one of {', '.join(NETWORKS)} (--network)"
        )
    network = given_network(options.network, options.network_settings)
    if options.pretrained:
        load_weights(network, path)
    source: dict[str, Any] = {}
    if (address := _address_of(options.network)) is not None:
        source = {"network": address, "network_settings": dict(options.network_settings)}
    return ZooModel(network=network.eval(), address=f"local:{name}", source=source)


def load_saved(folder: Path, address: str, options: Options) -> ZooModel:
    """Load a folder with `config.json` and `model.safetensors`."""
    config = read_config(folder)
    rule = _rule(config, folder)
    found = _described(config, folder, options)
    if options.pretrained:
        load_weights(found.network, folder / WEIGHTS)
    known: dict[str, Any] = {
        key: config[key] for key in ("num_classes", "dataset", "norm", "eps") if key in config
    }
    if config.get("input_shape"):
        known["input_shape"] = tuple(config["input_shape"])
    known["trained_eps"] = _trained_eps(config.get("recipe"))
    source = {key: value for key, value in config.items() if key not in ("format", "rule")}
    return replace(found, address=address, rule=rule, source=source, **known)


def _trained_eps(recipe: Any) -> float | None:
    """The budget of the training, where a recipe says so."""
    method = recipe.get("method") if isinstance(recipe, Mapping) else None
    eps = method.get("eps") if isinstance(method, Mapping) else None
    return float(eps) if isinstance(eps, int | float) and not isinstance(eps, bool) else None


def _rule(config: Mapping[str, Any], folder: Path) -> RejectionRule | None:
    if not config.get("rule"):
        return None
    try:
        held = config["rule"]
        name = held.get("name") if isinstance(held, Mapping) else None
        if isinstance(name, str) and ":" in name and name not in RULES:
            find_rule(trusted(name, folder))
        return load_rule(folder, held)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG}: {one_line(error)}") from error


def _described(config: Mapping[str, Any], folder: Path, options: Options) -> ZooModel:
    """Build the network a folder describes, without its weights."""
    network, settings = config.get("network"), config.get("network_settings") or {}
    if options.network is not None:
        own = settings if _address_of(options.network) == network else {}
        settings = {**own, **options.network_settings}
        return _as_model(given_network(options.network, settings), folder)
    if network and ":" in network:
        raise ValueError(
            f"{folder / CONFIG} names the network {network!r}, which is code that a file must not "
            f"start; if you trust it, pass network={network!r} (--network)"
        )
    if network:
        return _as_model(_registered(network, settings, folder, options), folder)
    if not config.get("base"):
        raise ValueError(
            f"{folder / CONFIG} names neither a network nor the address of a base, so the weights "
            "cannot be placed; pass network=, the torch.nn.Module that was saved"
        )
    return _base(config["base"], settings, folder, options)


def _as_model(network: nn.Module, folder: Path) -> ZooModel:
    return ZooModel(network=network.eval(), address=str(folder))


def _registered(
    name: str, settings: Mapping[str, Any], folder: Path, options: Options
) -> nn.Module:
    """Build a network of ours, unless it is far larger than the file of its weights."""
    NETWORKS[name]  # raises with a near miss
    file = folder / WEIGHTS
    size = file.stat().st_size if file.is_file() else 0
    count = _count_weights(name, settings)
    if count > max(size, _ALWAYS_ROOM) and options.pretrained:
        raise ValueError(
            f"{folder / CONFIG} describes a network of {count:,} weights, which {WEIGHTS} "
            f"({size:,} bytes) has no room for"
        )
    try:
        return build_network(name, **settings)
    except Exception as error:  # whatever a network's code says of settings that do not fit
        raise ValueError(
            f"{folder / CONFIG}: network {name!r} does not take the settings {dict(settings)}: "
            f"{one_line(error)}"
        ) from error


def _count_weights(name: str, settings: Mapping[str, Any]) -> int:
    """How many weights a network would have, without making room for them; 0 if nobody knows."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in build_network(name, **settings).parameters())
    except Exception:  # found out, and told, when the network is built
        return 0


def _base(address: str, settings: Mapping[str, Any], folder: Path, options: Options) -> ZooModel:
    source, name = parse_address(address)
    chain = (*options.chain, folder.resolve())
    if source == "local" and (Path(name).expanduser().resolve() in chain or len(chain) > 8):
        raise ValueError(f"{folder / CONFIG}: its base {address!r} leads back to itself")
    if source == "hf-hub" and not options.download:
        raise ValueError(
            f"{folder / CONFIG} has the base {address}, whose description is on the Hugging Face "
            "Hub; pass download=True to fetch it, or network=, the torch.nn.Module that was saved"
        )
    told = replace(options, pretrained=False, network_settings=settings, chain=chain)
    return ZOOS[source](name, told)


def given_network(network: Network, settings: Mapping[str, Any]) -> nn.Module:
    """The architecture that the caller named or brought; a module is copied."""
    if isinstance(network, nn.Module):
        return copy.deepcopy(network)
    if isinstance(network, str) and ":" not in network:
        return build_network(network, **settings)
    built = call(network, **settings)
    if not isinstance(built, nn.Module):
        raise TypeError(
            f"network: expected {_address_of(network) or network} to give a torch.nn.Module, "
            f"got {type(built).__name__}"
        )
    return built


def _address_of(network: Network) -> str | None:
    """How to name an architecture in a file, None where there is no way."""
    if isinstance(network, str):
        return network
    if isinstance(network, nn.Module):
        return None
    module, name = getattr(network, "__module__", None), getattr(network, "__qualname__", "<")
    return None if module in (None, "__main__") or "<" in name else f"{module}:{name}"
