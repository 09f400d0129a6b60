"""Why figures may differ from the paper's: measured facts, and conjectures that say so."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import cpr_wrap
from cpr_wrap.metrics.clean import robust_accuracy_with_detection
from cpr_wrap.report.wording import count_text
from study import paper
from study.paper import SEEN, UNSEEN
from study.read import Result, Results

SCALE = (
    "Conjecture: the networks here are smaller than the paper's and were trained for a shorter "
    "time, which moves every figure."
)

_CARDS = Path(cpr_wrap.__file__).parent / "bundled" / "models"


def short(used: Iterable[Result]) -> tuple[str, ...]:
    """The limit of a first look in two words, if it is one."""
    return ("quick budget",) if first_look(used) else ()


def first_look(used: Iterable[Result]) -> str:
    """What a quick budget means for a comparison, if it is one."""
    if all(result.study.get("budget") != "quick" for result in used):
        return ""
    return (
        "Measured: the budget was quick, a first look; a larger one can only raise losses, and "
        "not necessarily by the same amount for each method."
    )


def base_networks(results: Results) -> str:
    """How the networks without rejection compare with the paper's, where that was measured."""
    texts = []
    for method in ("AT", "TRADES"):
        for budget in (SEEN, UNSEEN):
            result = results.table(budget).get(method)
            if result is not None:
                ours = 100 * robust_accuracy_with_detection(result.curve.records)
                theirs = paper.TRADITIONAL[method][budget]
                texts.append(f"{method} {ours:.1f} % {budget} (paper {theirs:.2f} %)")
    if not texts:
        return ""
    return f"Measured: without rejection and under AutoAttack the networks keep {', '.join(texts)}."


def training(results: Results) -> str:
    """How long the bundled networks were trained, from their cards."""
    addresses = {str(r.details.get("model") or "") for r in results.of("main")}
    recipes = [card for name in sorted(addresses) if (card := _recipe(name))]
    if not recipes:
        return ""
    epochs = _span(recipe["epochs"] for recipe in recipes)
    steps = _span(recipe["method"].get("steps", 0) for recipe in recipes)
    return (
        f"Known: our networks are a smaller LeNet, trained for {epochs} epochs with attacks of "
        f"{steps} steps; the paper trains for {paper.EPOCHS} epochs with {paper.TRAINING_STEPS} "
        "steps (AT, CCAT, RCD and ATRR)."
    )


def _recipe(address: str) -> dict[str, Any]:
    file = _CARDS / address.rpartition(":")[2] / "config.json"
    if not address or not file.exists():
        return {}
    recipe = json.loads(file.read_text()).get("recipe") or {}
    assert isinstance(recipe, dict)
    return recipe


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return " to ".join(map(str, dict.fromkeys((found[0], found[-1]))))


def effort(results: Results) -> str:
    """How much smaller our search is than the paper's."""
    passes = [
        r.details["passes_total"]["per_image"]
        for r in results.of("main")
        if r.details["settings"]["rule"]["name"] == "cpr"
    ]
    if not passes:
        return ""
    return (
        f"Measured: our search took {count_text(median(passes))} passes an image on CPR (median), "
        "the paper's protocol takes millions. Where a loss of ours is below the paper's, a weaker "
        "attack is a possible reason; the audit below looks for signs of it."
    )


def likely(results: Results) -> list[str]:
    """Everything that is known about why figures differ."""
    known = (base_networks, training, effort)
    return [text for reason in known if (text := reason(results))]
