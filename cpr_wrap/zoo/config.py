"""The description of a saved model, `config.json`, which may come from anybody."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpr_wrap.selective import RULES

CONFIG, WEIGHTS = "config.json", "model.safetensors"

_KINDS: dict[str, tuple[type, ...]] = {
    "rule": (dict,),
    "network": (str,),
    "network_settings": (dict,),
    "base": (str,),
    "dataset": (str,),
    "norm": (str,),
    "eps": (float, int),
    "num_classes": (int,),
    "input_shape": (list,),
}
_MOST_PIXELS, _MOST_SETTING = 2**28, 1_000_000


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
            yield f"{name}: expected {_name(kinds)}, got {_short(value)}"
    shape = config.get("input_shape") or [1]
    if not all(_is(n, (int,)) and n > 0 for n in shape) or math.prod(shape) > _MOST_PIXELS:
        yield f"input_shape: expected a few numbers above 0, got {_short(shape)}"
    classes = config.get("num_classes")
    if classes is not None and not 2 <= classes <= _MOST_SETTING:
        yield f"num_classes: expected 2 to {_MOST_SETTING:,}, got {classes}"
    dataset = config.get("dataset") or "-"
    if Path(dataset).name != dataset or dataset == ".." or "\\" in dataset:
        yield f"dataset: expected a name, got {_short(dataset)}"
    for name, value in (config.get("network_settings") or {}).items():
        if _is(value, (int, float)) and not abs(value) <= _MOST_SETTING:
            yield f"network_settings: expected {name} up to {_MOST_SETTING:,}, got {_short(value)}"
    yield from _rule_problems(config.get("rule") or {})


def _rule_problems(rule: dict[str, Any]) -> Iterator[str]:
    """Settings of another type than those that the rule has by default."""
    kind = RULES.get(rule["name"]) if isinstance(rule.get("name"), str) else None
    for name, field in getattr(kind, "__dataclass_fields__", {}).items():
        value, usual = rule.get(name, field.default), type(field.default)
        allowed = (float, int) if usual is float else (usual,)
        if usual in (bool, int, float, str) and not (_is(value, allowed) and value == value):
            yield f"rule: expected {name!r} to be {_name(allowed)}, got {_short(value)}"


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    """`isinstance`, but a truth value is no number."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _name(kinds: tuple[type, ...]) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return names.get(kinds[0], "a whole number" if kinds == (int,) else "a number")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
