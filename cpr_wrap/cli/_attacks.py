"""Attacks by name, as stages that an evaluation can run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cpr_wrap._registry import find
from cpr_wrap.attacks.adaptive import ATTACKS, Attack, Stage, as_stage
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.cli._show import first_line
from cpr_wrap.objective import Goal, Objective
from cpr_wrap.rules import RULES
from cpr_wrap.selective import RejectionRule
from cpr_wrap.zoo.model import unknown

GUESTS = {
    "autoattack": "AutoAttack on the bare network, judged with the rule; also :plus, :small",
    "autoattack-adaptive": "AutoAttack's attacks with our goal: accepted and wrong",
    "foolbox:NAME": "any attack of Foolbox, e.g. foolbox:LinfPGD",
    "module:NAME": "your own: a function perturb(model, x, y, eps), or a class with that method",
}


def find_attack(
    name: str, rule: RejectionRule, *, steps: int | None = None, restarts: int | None = None
) -> Stage:
    """The attack of a name on a rule: an objective of it, one of `GUESTS`, or `module:name`.

    An objective, in any case, runs 50 steps from the image and from one random start by default.
    """
    guest = _guest(name)
    if guest is not None:
        if steps is not None or restarts is not None:
            raise ValueError(f"attack {name} takes neither --iterations nor --restarts")
        return guest
    known = {objective.name: (goal, objective) for goal, objective in _objectives(rule)}
    folded = {each.lower(): each for each in known}
    if name.lower() not in folded:
        raise unknown(f"attack on rule {rule.name}", name, [*known, *ATTACKS, *GUESTS])
    goal, objective = known[folded[name.lower()]]
    steps = steps or 50
    return Attack(
        objective=objective,
        goal=goal,
        steps=steps,
        step=1 / 3 if steps <= 20 else 1 / 10,
        starts=tuple(range((1 if restarts is None else restarts) + 1)),
    )


def _guest(name: str) -> Stage | None:
    """An attack that is no objective of a rule, None if there is none of that name."""
    source, colon, detail = name.partition(":")
    version: dict[str, Any] = {"version": detail} if detail else {}
    if source == "autoattack":
        return AutoAttackOnBase(**version)
    if source == "autoattack-adaptive":
        return AdaptiveAutoAttack(**version)
    if source == "foolbox":
        from cpr_wrap.attacks.foolbox import attack_by_name

        return attack_by_name(detail)
    return as_stage(find(ATTACKS, name)) if colon or name in ATTACKS else None


def _objectives(rule: RejectionRule | type[RejectionRule]) -> Iterable[tuple[Goal, Objective]]:
    if isinstance(rule, type):
        try:
            rule = rule()
        except TypeError:  # a rule that needs settings lists its attacks once it has them
            return
    for objective in (*rule.inner, *rule.extra_inner):
        yield Goal.REJECTED, objective
    for objective in rule.outer:
        yield Goal.ACCEPTED_MISTAKE, objective


def attack_names() -> dict[str, str]:
    """All attacks, with the rules they are for; inner ones want a rejection, outer a mistake."""
    about: dict[str, str] = {}
    rules: dict[str, list[str]] = {}
    for rule in RULES.values():
        for goal, objective in _objectives(rule):
            kind = "inner" if goal is Goal.REJECTED else "outer"
            about[objective.name] = f"{kind}: {first_line(objective.terms)}"
            rules.setdefault(objective.name, []).append(rule.name)
    listed = {name: f"{about[name]} On {', '.join(rules[name])}." for name in sorted(about)}
    return listed | {name: first_line(ATTACKS[name]) for name in ATTACKS} | GUESTS
