"""`cpr-wrap list`: the names that other commands take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.cli import _show
from cpr_wrap.cli._attacks import attack_names
from cpr_wrap.cli._run import answer
from cpr_wrap.cli.commands import ListNames
from cpr_wrap.data import DATASETS, LOADERS
from cpr_wrap.rules import RULES
from cpr_wrap.training import RECIPES
from cpr_wrap.zoo import ZOOS, load_network
from cpr_wrap.zoo.local import bundled_names
from cpr_wrap.zoo.robustbench import robustbench_names
from cpr_wrap.zoo.timm import timm_names


def list_names(options: ListNames) -> None:
    """List what is asked for."""
    kinds: dict[str, Callable[[], Mapping[str, str]]] = {
        "models": _SOURCES[options.source],
        "sources": lambda: _first_lines(ZOOS),
        "rules": lambda: _first_lines(RULES),
        "attacks": attack_names,
        "budgets": _budgets,
        "datasets": lambda: {**_known_images(), **_first_lines(LOADERS)},
        "recipes": _recipes,
    }
    wanted = (options.like or "").lower()
    found = {
        kind: {name: text for name, text in entries().items() if wanted in name.lower()}
        for kind, entries in kinds.items()
        if options.kind in (None, kind)
    }
    lines = [line for k, v in found.items() for line in _show.listed(k, v or {"none": ""})]
    if "models" in found and options.source == "bundled":
        lines.append("models of other sources: cpr-wrap list models --source robustbench, or timm")
    answer(options, found, *lines)


def _first_lines(registry: Mapping[str, Any]) -> dict[str, str]:
    return {name: _show.first_line(each) for name, each in registry.items()}


def _bundled() -> dict[str, str]:
    found = {}
    for name in bundled_names():
        facts = load_network(f"bundled:{name}", pretrained=False)
        threat = "" if facts.eps is None else f", trained for {facts.norm} eps {facts.eps:g}"
        rule = "" if facts.rule is None else f", rule {facts.rule.name}"
        found[facts.address] = f"{facts.dataset}{threat}{rule}"
    return found


_SOURCES: dict[str, Callable[[], dict[str, str]]] = {
    "bundled": _bundled,
    "robustbench": lambda: dict.fromkeys(robustbench_names(), ""),
    "timm": lambda: dict.fromkeys(timm_names(), ""),
}


def _budgets() -> dict[str, str]:
    lines = _first_lines({name: type(each) for name, each in BUDGETS.items()})
    lines["published"] += "  With the published code's choices where the two differ."
    return lines


def _known_images() -> dict[str, str]:
    lines = {}
    for name, each in DATASETS.items():
        channels, height, width = each.shape
        here = ", 2,000 test images bundled" if each.bundled else ""
        color = "color" if channels == 3 else "gray"
        lines[name] = f"{each.num_classes} classes, {color} {height} x {width}{here}"
    return lines


def _recipes() -> dict[str, str]:
    return {
        name: f"{each.method.name} on {each.dataset}, {each.network}, {each.epochs} epochs"
        for name, each in RECIPES.items()
    }
