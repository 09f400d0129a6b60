"""Attacks by name, as stages that an evaluation can run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cpr_wrap.attacks.adaptive import Attack, Stage
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.attacks.foolbox import attack_by_name
from cpr_wrap.objective import Goal, Objective
from cpr_wrap.rules import RULES
from cpr_wrap.selective import RejectionRule
from cpr_wrap.zoo.model import unknown

GUESTS = {
    "autoattack": "AutoAttack on the network, its points judged by the rule; also :plus, :small",
    "autoattack-adaptive": "AutoAttack's parts with our goal: accepted and wrong",
    "foolbox:NAME": "any attack of Foolbox, e.g. foolbox:LinfPGD",
}


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A budget that is one attack.

    Attributes:
        stage: The attack.
    """

    stage: Stage

    @property
    def name(self) -> str:
        """The attack's name."""
        return f"only {self.stage.name}"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:  # noqa: ARG002
        """The attack."""
        return (self.stage,)


def find_attack(name: str, rule: RejectionRule, *, iterations: int, restarts: int) -> Stage:
    """The attack of a name on a rule.

    Args:
        name: An objective of the rule, in any case, or one of `GUESTS`.
        rule: The rule under attack.
        iterations: Steps of each climb.
        restarts: Random starts beside the image itself.
    """
    source, _, detail = name.partition(":")
    if source == "autoattack":
        return AutoAttackOnBase(version=detail) if detail else AutoAttackOnBase()
    if source == "autoattack-adaptive":
        return AdaptiveAutoAttack(version=detail) if detail else AdaptiveAutoAttack()
    if source == "foolbox":
        return attack_by_name(detail)
    known = {objective.name: (goal, objective) for goal, objective in _objectives(rule)}
    folded = {each.lower(): each for each in known}
    if name.lower() not in folded:
        raise unknown(f"attack on rule {rule.name}", name, [*known, *GUESTS])
    goal, objective = known[folded[name.lower()]]
    return Attack(
        objective=objective,
        goal=goal,
        iterations=iterations,
        step=1 / 3 if iterations <= 20 else 1 / 10,
        starts=tuple(range(restarts + 1)),
    )


def _objectives(
    rule: RejectionRule | type[RejectionRule],
) -> Iterable[tuple[Goal, Objective]]:
    for objective in rule.inner:
        yield Goal.REJECTED, objective
    for objective in (*rule.outer, *rule.extra_outer):
        yield Goal.ACCEPTED_MISTAKE, objective


def attack_names() -> dict[str, str]:
    """All attacks, with the rules they are for; inner ones want a rejection, outer a mistake."""
    about: dict[str, str] = {}
    rules: dict[str, list[str]] = {}
    for rule in RULES.values():
        for goal, objective in _objectives(rule):
            kind = "inner" if goal is Goal.REJECTED else "outer"
            about[objective.name] = f"{kind}: {(objective.terms.__doc__ or '').splitlines()[0]}"
            rules.setdefault(objective.name, []).append(rule.name)
    listed = {name: f"{about[name]} On {', '.join(rules[name])}." for name in sorted(about)}
    return listed | GUESTS
