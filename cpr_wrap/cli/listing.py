"""`cpr-wrap list`: the names that other commands take."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli.options import Common, option


class Kind(str, enum.Enum):
    """What there is to choose from."""

    models = "models"
    sources = "sources"
    rules = "rules"
    attacks = "attacks"
    budgets = "budgets"
    datasets = "datasets"
    recipes = "recipes"


class SourceName(str, enum.Enum):
    """Where models come from."""

    bundled = "bundled"
    robustbench = "robustbench"
    timm = "timm"


def list_names(
    kind: Annotated[
        Kind | None,
        typer.Argument(help="What to list; everything by default.", show_default=False),
    ] = None,
    *,
    source: Annotated[
        SourceName, typer.Option(help="Source of the models to list.")
    ] = SourceName.bundled,
    like: Annotated[str | None, option("Only names that contain this.")] = None,
    common: Common,
) -> None:
    """List models, their sources, rules, attacks, budgets, data sets or training recipes by name.

    Nothing is computed: --device has no effect here.

    Example: cpr-wrap list models --source robustbench --like rice
    """
    kinds = list(Kind) if kind is None else [kind]
    found = {
        each.value: _wanted(_models(source) if each is Kind.models else _LISTS[each](), like)
        for each in kinds
    }
    if common.as_json:
        _show.print_json(found)
        return
    for name, entries in found.items():
        _show.print_list(name, entries or {"none": ""})
    if Kind.models in kinds and source is SourceName.bundled:
        typer.echo("models of other sources: cpr-wrap list models --source robustbench, or timm")


def _wanted(entries: dict[str, str], like: str | None) -> dict[str, str]:
    return {k: v for k, v in entries.items() if like is None or like.lower() in k.lower()}


def _models(source: SourceName) -> dict[str, str]:
    if source is SourceName.bundled:
        return _bundled()
    if source is SourceName.robustbench:
        from cpr_wrap.zoo.robustbench import robustbench_names

        return dict.fromkeys(robustbench_names(), "")
    from cpr_wrap.zoo.timm import timm_names

    return dict.fromkeys(timm_names(), "")


def _bundled() -> dict[str, str]:
    from cpr_wrap.zoo import load_network
    from cpr_wrap.zoo.local import bundled_names

    found = {}
    for name in bundled_names():
        facts = load_network(f"bundled:{name}", pretrained=False)
        threat = "" if facts.eps is None else f", trained for {facts.norm} eps {facts.eps:g}"
        rule = "" if facts.rule is None else f", rule {facts.rule.name}"
        found[facts.address] = f"{facts.dataset}{threat}{rule}"
    return found


def _sources() -> dict[str, str]:
    from cpr_wrap.zoo import ZOOS

    return {name: _first_line(ZOOS[name]) for name in ZOOS}


def _rules() -> dict[str, str]:
    from cpr_wrap.rules import RULES

    return {name: _first_line(RULES[name]) for name in RULES}


def _attacks() -> dict[str, str]:
    from cpr_wrap.cli._attacks import attack_names

    return attack_names()


def _budgets() -> dict[str, str]:
    from cpr_wrap.attacks.ensemble import BUDGETS

    as_coded = {"published": "  With the published code's choices where the two differ."}
    return {name: _first_line(type(BUDGETS[name])) + as_coded.get(name, "") for name in BUDGETS}


def _datasets() -> dict[str, str]:
    from cpr_wrap.data import DATASETS, LOADERS

    known = {name: _images(DATASETS[name]) for name in DATASETS}
    return known | {name: _first_line(LOADERS[name]) for name in LOADERS}


def _images(dataset: Any) -> str:
    channels, height, width = dataset.shape
    here = ", 2,000 test images bundled" if dataset.bundled else ""
    colour = "colour" if channels == 3 else "grey"
    return f"{dataset.num_classes} classes, {colour} {height} x {width}{here}"


def _recipes() -> dict[str, str]:
    from cpr_wrap.training import RECIPES

    return {
        name: f"{RECIPES[name].method.name} on {RECIPES[name].dataset}, {RECIPES[name].network}, "
        f"{RECIPES[name].epochs} epochs"
        for name in RECIPES
    }


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


_LISTS: dict[Kind, Callable[[], dict[str, str]]] = {
    Kind.sources: _sources,
    Kind.rules: _rules,
    Kind.attacks: _attacks,
    Kind.budgets: _budgets,
    Kind.datasets: _datasets,
    Kind.recipes: _recipes,
}
