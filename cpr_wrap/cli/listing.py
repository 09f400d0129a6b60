"""`cpr-wrap list`: the names that other commands take."""

from __future__ import annotations

from typing import Any, Literal, get_args

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli.options import Common, argument, option

Kind = Literal["models", "sources", "rules", "attacks", "budgets", "datasets", "recipes"]


def list_names(
    kind: Kind | None = argument("What to list; everything by default.", None),
    *,
    source: Literal["bundled", "robustbench", "timm"] = option(
        "Source of the models to list.", default="bundled"
    ),
    like: str | None = option("Only names that contain this."),
    common: Common,
) -> None:
    """List models, their sources, rules, attacks, budgets, data sets or training recipes by name.

    Nothing is computed: --device has no effect here.

    Example: cpr-wrap list models --source robustbench --like rice
    """
    wanted = (like or "").lower()
    kinds = get_args(Kind) if kind is None else (kind,)
    found = {
        each: {k: v for k, v in _entries(each, source).items() if wanted in k.lower()}
        for each in kinds
    }
    if common.as_json:
        _show.print_json(found)
        return
    for name, entries in found.items():
        _show.print_list(name, entries or {"none": ""})
    if "models" in kinds and source == "bundled":
        typer.echo("models of other sources: cpr-wrap list models --source robustbench, or timm")


def _entries(kind: str, source: str) -> dict[str, str]:
    """Names of a kind, with what they are."""
    from cpr_wrap import zoo
    from cpr_wrap.attacks.ensemble import BUDGETS
    from cpr_wrap.cli._attacks import attack_names
    from cpr_wrap.data import DATASETS, LOADERS
    from cpr_wrap.rules import RULES
    from cpr_wrap.training import RECIPES

    if kind == "models":
        return _models(source)
    if kind == "attacks":
        return attack_names()
    if kind == "datasets":
        known = {name: _images(DATASETS[name]) for name in DATASETS}
        return known | {name: _show.first_line(LOADERS[name]) for name in LOADERS}
    if kind == "recipes":
        return {
            name: f"{each.method.name} on {each.dataset}, {each.network}, {each.epochs} epochs"
            for name, each in RECIPES.items()
        }
    if kind == "budgets":
        as_coded = {"published": "  With the published code's choices where the two differ."}
        return {
            name: _show.first_line(type(each)) + as_coded.get(name, "")
            for name, each in BUDGETS.items()
        }
    registry: Any = zoo.ZOOS if kind == "sources" else RULES
    return {name: _show.first_line(each) for name, each in registry.items()}


def _models(source: str) -> dict[str, str]:
    from cpr_wrap.zoo import load_network
    from cpr_wrap.zoo.local import bundled_names
    from cpr_wrap.zoo.robustbench import robustbench_names
    from cpr_wrap.zoo.timm import timm_names

    if source == "robustbench":
        return dict.fromkeys(robustbench_names(), "")
    if source == "timm":
        return dict.fromkeys(timm_names(), "")
    found = {}
    for name in bundled_names():
        facts = load_network(f"bundled:{name}", pretrained=False)
        threat = "" if facts.eps is None else f", trained for {facts.norm} eps {facts.eps:g}"
        rule = "" if facts.rule is None else f", rule {facts.rule.name}"
        found[facts.address] = f"{facts.dataset}{threat}{rule}"
    return found


def _images(dataset: Any) -> str:
    channels, height, width = dataset.shape
    here = ", 2,000 test images bundled" if dataset.bundled else ""
    color = "color" if channels == 3 else "gray"
    return f"{dataset.num_classes} classes, {color} {height} x {width}{here}"
