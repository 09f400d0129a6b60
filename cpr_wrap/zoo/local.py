"""Models on disk: a folder written by `SelectiveClassifier.save`, or a file of weights.

A folder and its description, `config.json`, may come from anybody. Some come with this package.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpr_wrap._registry import call, trusted
from cpr_wrap.networks import NETWORKS, build_network
from cpr_wrap.rule import RULES, find_rule
from cpr_wrap.selective import CONFIG, WEIGHTS, RejectionRule, load_rule
from cpr_wrap.zoo.checkpoint import load_weights, one_line
from cpr_wrap.zoo.model import ZOOS, Network, Options, ZooModel, parse_address, unknown

_BUNDLED = Path(__file__).parent.parent / "bundled" / "models"
_ALWAYS_ROOM = 2**26  # weights: a quarter of a gigabyte
_MOST_PIXELS, _MOST_SETTING = 2**28, 1_000_000

_Kinds = tuple[type, ...]
_TEXT, _WHOLE, _NUMBER, _OBJECT = (str,), (int,), (float, int), (dict,)
_WORDS: dict[_Kinds, str] = {
    _TEXT: "a text",
    _WHOLE: "a whole number",
    _NUMBER: "a number",
    _OBJECT: "an object",
    (list,): "a list",
    (bool,): "true or false",
}
_KINDS: dict[str, _Kinds] = {
    **dict.fromkeys(("network", "base", "dataset", "norm"), _TEXT),
    **dict.fromkeys(("rule", "network_settings"), _OBJECT),
    "eps": _NUMBER,
    "num_classes": _WHOLE,
    "input_shape": (list,),
}


def bundled_names(folder: Path = _BUNDLED) -> list[str]:
    """The models that come with this package, one folder each."""
    return sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))


@ZOOS.register("bundled")
def load_bundled(name: str, options: Options) -> ZooModel:
    """Load a model that needs no download, e.g. `bundled:mnist-compact-at`."""
    if name not in bundled_names(_BUNDLED):
        raise unknown("bundled model", name, bundled_names(_BUNDLED))
    return load_saved(_BUNDLED / name, f"bundled:{name}", options)


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
    if ":" in (config.get("dataset") or ""):  # code, which a file must not start
        del known["dataset"]
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
        held, name = config["rule"], config["rule"].get("name")
        if isinstance(name, str) and ":" in name and name not in RULES:
            find_rule(trusted(name, folder))
        return load_rule(folder, held)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG}: {one_line(error)}") from error


def _described(config: Mapping[str, Any], folder: Path, options: Options) -> ZooModel:
    """Build the network a folder describes, without its weights."""
    name, settings = config.get("network"), config.get("network_settings") or {}
    if options.network is not None:
        own = settings if _address_of(options.network) == name else {}
        network = given_network(options.network, {**own, **options.network_settings})
    elif name and ":" in name:
        raise ValueError(
            f"{folder / CONFIG} names the network {name!r}, which is code that a file must not "
            f"start; if you trust it, pass network={name!r} (--network)"
        )
    elif name:
        network = _registered(name, settings, folder, options)
    elif config.get("base"):
        return _base(config["base"], settings, folder, options)
    else:
        raise ValueError(
            f"{folder / CONFIG} names neither a network nor the address of a base, so the weights "
            "cannot be placed; pass network=, the torch.nn.Module that was saved"
        )
    return ZooModel(network=network.eval(), address=str(folder))


def _registered(
    name: str, settings: Mapping[str, Any], folder: Path, options: Options
) -> nn.Module:
    """Build a network of ours, unless it is far larger than the file of its weights."""
    NETWORKS[name]  # raises with a near miss
    file, count = folder / WEIGHTS, 0
    size = file.stat().st_size if file.is_file() else 0
    # Without making room for them. What fails here is told when the network is built.
    with contextlib.suppress(Exception), torch.device("meta"):
        count = sum(p.numel() for p in build_network(name, **settings).parameters())
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


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check a saved folder's description."""
    path = folder / CONFIG
    if not path.is_file():
        raise LookupError(f"{folder}: expected {CONFIG} and {WEIGHTS} in it, found no {CONFIG}")
    try:
        config = json.loads(path.read_text())
        problem = next(_problems(config), None) if isinstance(config, dict) else None
    except RecursionError as error:
        raise ValueError(f"{path}: expected a plain description, got deep nesting") from error
    except ValueError as error:
        raise RuntimeError(f"{path} is damaged: it is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(config).__name__}")
    if problem is not None:
        raise ValueError(f"{path}: {problem}")
    return config


def _problems(config: dict[str, Any]) -> Iterator[str]:
    for name, kinds in _KINDS.items():
        value = config.get(name)
        if value is not None and not _is(value, kinds):
            yield f"{name}: expected {_WORDS[kinds]}, got {value!r:.80}"
    shape = config.get("input_shape") or [1]
    if not all(_is(n, _WHOLE) and n > 0 for n in shape) or math.prod(shape) > _MOST_PIXELS:
        yield f"input_shape: expected a few numbers above 0, got {shape!r:.80}"
    classes = config.get("num_classes")
    if classes is not None and not 2 <= classes <= _MOST_SETTING:
        yield f"num_classes: expected 2 to {_MOST_SETTING:,}, got {classes}"
    dataset = config.get("dataset") or "-"
    if Path(dataset).name != dataset or dataset == ".." or "\\" in dataset:
        yield f"dataset: expected a name, got {dataset!r:.80}"
    for name, value in (config.get("network_settings") or {}).items():
        if _is(value, _NUMBER) and not abs(value) <= _MOST_SETTING:
            yield f"network_settings: expected {name} up to {_MOST_SETTING:,}, got {value!r:.80}"
    yield from _rule_problems(config.get("rule") or {})


def _rule_problems(rule: dict[str, Any]) -> Iterator[str]:
    """Settings of another type than those that the rule has by default."""
    kind = RULES.get(rule["name"]) if isinstance(rule.get("name"), str) else None
    for name, field in getattr(kind, "__dataclass_fields__", {}).items():
        value, usual = rule.get(name, field.default), type(field.default)
        allowed = _NUMBER if usual is float else (usual,)
        if usual in (bool, int, float, str) and not (_is(value, allowed) and value == value):
            yield f"rule: expected {name!r} to be {_WORDS[allowed]}, got {value!r:.80}"


def _is(value: Any, kinds: _Kinds) -> bool:
    """`isinstance`, but a truth value is no number."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
