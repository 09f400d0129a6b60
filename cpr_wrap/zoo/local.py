"""Models on disk: a folder written by `SelectiveClassifier.save`, or a file of weights.

A folder and its description, `config.json`, may come from anybody. Some come with this package.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpr_wrap._registry import call, trusted
from cpr_wrap.networks import NETWORKS, build_network
from cpr_wrap.rule import RULES, find_rule
from cpr_wrap.selective import CONFIG, WEIGHTS, RejectionRule, load_rule
from cpr_wrap.zoo.checkpoint import load_weights, one_line
from cpr_wrap.zoo.model import ZOOS, Network, Options, ZooModel, parse_address, unknown

_BUNDLED = Path(__file__).parent.parent / "bundled" / "models"
_ALWAYS_ROOM = 2**26  # weights: a quarter of a gigabyte
_MOST_PIXELS, _MOST_SETTING = 2**28, 1_000_000


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
    rule = _rule(config.rule, folder)
    # Without weights, or as the base of another folder, there is no file here to measure by.
    with _Room(folder) if options.pretrained else contextlib.nullcontext():
        found = _described(config, folder, options)
    if options.pretrained:
        load_weights(found.network, folder / WEIGHTS)
    names = {"input_shape", "num_classes", "dataset", "norm", "eps"}
    known = config.model_dump(include=names, exclude_none=True)
    if re.search(r"[/\\:]|^\.+$", known.get("dataset", "")):
        del known["dataset"]  # a path, or code, which a file must not choose
    source = config.model_dump(exclude={"format", "rule"}, exclude_unset=True)
    known["trained_eps"] = _trained_eps(source.get("recipe"))
    return replace(found, address=address, rule=rule, source=source, **known)


def _trained_eps(recipe: Any) -> float | None:
    """The budget of the training, where a recipe says so."""
    method = recipe.get("method") if isinstance(recipe, Mapping) else None
    eps = method.get("eps") if isinstance(method, Mapping) else None
    return float(eps) if isinstance(eps, int | float) and not isinstance(eps, bool) else None


def _rule(held: Mapping[str, Any] | None, folder: Path) -> RejectionRule | None:
    if not held:
        return None
    try:
        name = held.get("name")
        if isinstance(name, str) and ":" in name and name not in RULES:
            find_rule(trusted(name, folder))
        return load_rule(folder, held)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG}: {one_line(error)}") from error


def _described(config: Any, folder: Path, options: Options) -> ZooModel:
    """Build the network a folder describes, without its weights."""
    name, settings = config.network, config.network_settings or {}
    if options.network is not None:
        own = settings if _address_of(options.network) == name else {}
        network = given_network(options.network, {**own, **options.network_settings})
    elif name and ":" in name:
        raise ValueError(
            f"{folder / CONFIG} names the network {name!r}, which is code that a file must not "
            f"start; if you trust it, pass network={name!r} (--network)"
        )
    elif name:
        NETWORKS[name]  # raises with a near miss
        try:
            network = build_network(name, **settings)
        except Exception as error:  # whatever a network's code says of settings that do not fit
            raise ValueError(
                f"{folder / CONFIG}: network {name!r} does not take the settings {settings}: "
                f"{one_line(error)}"
            ) from error
    elif config.base:
        return _base(config.base, settings, folder, options)
    else:
        raise ValueError(
            f"{folder / CONFIG} names neither a network nor the address of a base, so the weights "
            "cannot be placed; pass network=, the torch.nn.Module that was saved"
        )
    return ZooModel(network=network.eval(), address=str(folder))


class _Room(TorchDispatchMode):
    """Inside, no room is made for a network that is far larger than the file of its weights."""

    def __init__(self, folder: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        file = folder / WEIGHTS
        self.size = file.stat().st_size if file.is_file() else 0
        self.left = max(self.size, _ALWAYS_ROOM)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the numbers of what is made, which functions like `empty` are told first."""
        if args and isinstance(args[0], list) and all(isinstance(n, int) for n in args[0]):
            self.left -= math.prod(args[0])
            if self.left < 0:
                raise ValueError(
                    f"a tensor of shape {tuple(args[0])}, for which {WEIGHTS} ({self.size:,} "
                    "bytes) has no room"
                )
        return func(*args, **(kwargs or {}))


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


def read_config(folder: Path) -> Any:
    """Read and check a saved folder's description; the entries are attributes, None if missing."""
    from pydantic import ValidationError

    path = folder / CONFIG
    if not path.is_file():
        raise LookupError(f"{folder}: expected {CONFIG} and {WEIGHTS} in it, found no {CONFIG}")
    try:
        config = _description().model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise ValueError(f"{path}: {place}{first['msg']}, got {first['input']!r:.80}") from error
    if math.prod(config.input_shape or ()) > _MOST_PIXELS:
        raise ValueError(f"{path}: input_shape: expected fewer pixels, got {config.input_shape}")
    for name, value in (config.network_settings or {}).items():
        # Not everything that a network's code makes of a number is a tensor.
        if isinstance(value, int | float) and not abs(value) <= _MOST_SETTING:
            raise ValueError(
                f"{path}: network_settings: expected {name} up to {_MOST_SETTING:,}, "
                f"got {value!r:.80}"
            )
    return config


@functools.cache
def _description() -> Any:
    """What is checked of a description; other entries are kept as they are."""
    from pydantic import BaseModel, Field, PositiveInt

    class Description(BaseModel, strict=True, extra="allow"):
        rule: dict[str, Any] | None = None
        network: str | None = None
        network_settings: dict[str, Any] | None = None
        base: str | None = None
        input_shape: tuple[PositiveInt, ...] | None = None
        num_classes: int | None = Field(None, ge=2, le=_MOST_SETTING)
        dataset: str | None = None
        norm: str | None = None
        eps: float | None = None

    return Description
