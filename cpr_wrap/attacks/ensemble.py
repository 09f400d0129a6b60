"""Budgets: which attacks run, with which settings, in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cpr_wrap._registry import Registry
from cpr_wrap.attacks.adaptive import KNOWN, Attack, Halving, Stage
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.attacks.donors import DonorStarts, NearMisses
from cpr_wrap.attacks.paper import Paper
from cpr_wrap.objective import Goal, Objective, lost_margin
from cpr_wrap.rule import RejectionRule
from cpr_wrap.rules.confidence import other_confidence

OUTER, INNER = Goal.ACCEPTED_MISTAKE, Goal.REJECTED

MOST_TARGETS = 9
"""With more classes than this, only as many of the likeliest targets are aimed at."""


MORE_EFFORT = "-more-effort"
"""In the names of stages that search longer on a sample of the images."""


class Budget(Protocol):
    """The protocol of a budget: a named list of stages for a rule."""

    @property
    def name(self) -> str:
        """The name in results."""
        ...

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """The stages in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A budget of given stages, whatever the rule."""

    name: str  #: The name in results.
    #: The stages in order; with none, an evaluation judges given points alone.
    listed: tuple[Stage, ...] = ()

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:  # noqa: ARG002
        """The stages."""
        return self.listed


# Short climbs lose too many steps to the paper's momentum of 0.9, whose first steps are tiny: on a
# robust MNIST network 12 steps reach the boundary of 24 of 60 images with it, of 56 with this one.
_MOMENTUM = 0.75


def _boundary() -> tuple[Attack, Attack, Halving]:
    """The network's own boundary: the way to rejections, and the theory's distances."""
    reach = Attack(
        objective=lost_margin, goal=Goal.MISTAKE, steps=40, step=0.3, momentum=_MOMENTUM, rounds=1
    )
    closer = replace(
        reach, steps=10, step=0.2, starts=(KNOWN,), rounds=4, stride=0.15, tag="-closer"
    )
    return reach, closer, Halving(goal=Goal.MISTAKE, rounds=4)


def _boundary_again() -> list[Stage]:
    """For images whose boundary was not found, or not by the shortest way."""
    reach, closer, halving = _boundary()
    far = replace(reach, steps=60, momentum=0.9, starts=(1,), tag="-far")
    return [far, replace(closer, rounds=3, stride=0.1, tag="-again"), halving]


def _inner(objective: Objective, steps: int, rounds: int, **changes: Any) -> Attack:
    attack = Attack(
        objective=objective,
        goal=INNER,
        steps=steps,
        step=0.15,
        momentum=_MOMENTUM,
        starts=(KNOWN,),
        rounds=rounds,
        stride=0.05,
        gradient="smoothed",
    )
    return replace(attack, **changes)


def _fewer(rule: RejectionRule, count: int) -> int:
    """So many restarts against a rule whose verdict is one forward, fewer where it costs more."""
    return max(1, round(count / rule.cost.total))


def _donors(rule: RejectionRule, near: int = 20, keep: int = 10, offset: int = 0) -> DonorStarts:
    """Restarts from many donors of any class, for rules that look at z alone."""
    return DonorStarts(
        near=near,
        offset=offset,
        forms=("projected", "corner", "pushed"),
        keep=_fewer(rule, keep),
        distinct=False,
    )


def _has_path(rule: RejectionRule) -> bool:
    """Whether mistakes are searched for along the rule's own path, which costs many passes."""
    return bool(rule.outer[-1].path)


def climb(rule: RejectionRule, tag: str, **changes: Any) -> Attack:
    """A restart that searches for accepted mistakes, with the settings that work best on a rule.

    Steps shrink and gradients are smoothed. If the rule has a path of its own, it is computed for
    the target class and reused for two steps. `changes` are other values for fields of `Attack`.
    """
    attack = Attack(
        objective=rule.outer[-1],
        goal=OUTER,
        steps=60,
        step=1 / 4,
        shrink=0.02,
        momentum=_MOMENTUM,
        targets=_fewer(rule, MOST_TARGETS),
        starts=_donors(rule),
        gradient="alternating",
        remember=True,
        tag=tag,
    )
    if _has_path(rule):
        attack = replace(
            attack,
            steps=50,
            shrink=0.05,
            targets=MOST_TARGETS,
            starts=DonorStarts(keep=1),
            stand_in=False,
            aimed=True,
            refresh=2,
            gradient="smoothed",
        )
    return replace(attack, **changes)


def _again(rule: RejectionRule, tag: str, keep: int = 2, **changes: Any) -> Attack:
    """Go on from the best points that earlier restarts ended at."""
    keep = keep if _has_path(rule) else _fewer(rule, keep)
    return climb(rule, tag, starts=NearMisses(keep=keep), **changes)


@dataclass(frozen=True)
class Quick:
    """A first look: at most 1,000 passes per image with ten classes.

    Example:
        >>> from cpr_wrap import AcceptAll
        >>> [stage.name for stage in Quick().stages(AcceptAll(), 0.3)][:2]
        ['MARGIN', 'MARGIN-closer']
    """

    name: str = "quick"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """Boundary, a few restarts from donors, and the smallest rejected radius."""
        del eps
        plan: list[Stage] = [*_boundary()]
        if _has_path(rule):
            few = DonorStarts(near=3, screen=1, keep=1)
            plan.append(climb(rule, "-quick", starts=few, steps=24, refresh=8))
            # Deep networks without adversarial training fall to exact gradients first.
            plan.append(
                Attack(
                    objective=rule.outer[-1],
                    goal=OUTER,
                    steps=10,
                    step=1 / 3,
                    momentum=_MOMENTUM,
                    targets=1,
                    aimed=True,
                    remember=True,
                    tag="-exact",
                )
            )
        else:
            plan.append(climb(rule, "-quick", starts=_donors(rule, near=4, keep=4), steps=40))
        if rule.can_reject:
            plan.append(Halving(goal=INNER, rounds=2 if _has_path(rule) else 3))
            rounds = 3 if _has_path(rule) else 5
            plan.append(_inner(rule.inner[0], 10, rounds, tag="-first"))
        return (*plan, *_more_effort([climb(rule, "")], 1 / 64))


def _more_effort(stages: Iterable[Attack], sample: float) -> tuple[Stage, ...]:
    """What a longer search finds on a sample of the images, for the reader to judge the rest."""
    return tuple(replace(s, sample=sample, tag=f"{MORE_EFFORT}{s.tag}") for s in stages)


def _round(
    rule: RejectionRule, number: int, *, keep: int = 2, restarts: int = 40, steps: int = 100
) -> list[Attack]:
    """Restarts that no other round makes: further donors, random starts, steps and smoothing."""
    step = (1 / 8, 1 / 4, 1 / 16)[number % 3]
    strength = (0.15, 0.3, 0.07)[number // 3 % 3]
    tag = f"/{number}"
    random = {"starts": (number + 1,), "strength": strength}
    if _has_path(rule):
        donors = DonorStarts(keep=keep, offset=6 * (number - 1), screen=4, wide=True)
        return [
            climb(rule, f"-donors{tag}", starts=donors, step=step, strength=strength),
            climb(rule, f"-random{tag}", targets=keep, **random),
            _again(rule, f"-again{tag}", keep, steps=30, step=step, refresh=1, strength=strength),
        ]
    kind = ("smoothed", "exact", "alternating")[number % 3]
    step = (1 / 6, 1 / 3, 1 / 2)[number % 3]
    donors = replace(_donors(rule, keep=restarts, offset=20 * (number - 1)), wide=True)
    near = max(2, restarts // 4)
    return [
        climb(rule, f"-donors{tag}", starts=donors, steps=steps, step=step, gradient=kind),
        climb(rule, f"-random{tag}", step=step, **random),
        _again(rule, f"-again{tag}", near, steps=100, step=step / 2, gradient=kind),
    ]


def unused_restarts(rule: RejectionRule, number: int = 0) -> list[Attack]:
    """Restarts that no budget uses, for checking what one found; each number has its own starts."""
    changes: dict[str, Any] = {"step": 1 / 5, "strength": 0.22, "momentum": 0.6}
    random: dict[str, Any] = {"starts": (101 + number,)}
    if _has_path(rule):
        donors = DonorStarts(near=10, keep=1, distinct=False, offset=3 * number)
        random["targets"] = 1
    else:
        donors = _donors(rule, near=15, offset=5 * number)
        changes["gradient"] = "smoothed"
    return [
        climb(rule, f"-audit{number}", starts=donors, **changes),
        climb(rule, f"-audit-random{number}", **changes, **random),
        _again(rule, f"-audit-again{number}", **{**changes, "steps": 40, "refresh": 1}),
    ]


@dataclass(frozen=True)
class Standard:
    """The default: at most 10,000 passes per image with ten classes and 20 steps of CPR."""

    name: str = "standard"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """What `quick` does, then more restarts of every kind, and closer rejections."""
        plan = [s for s in Quick().stages(rule, eps) if MORE_EFFORT not in s.name]
        plan.append(AutoAttackOnBase(version="small"))
        if rule.can_reject and rule.cost.total == 1:
            # Its steps adapt to each image, and break some that all restarts of ours miss.
            plan.append(AdaptiveAutoAttack(n_iter=100))
        plan.extend(self._outer_stages(rule))
        if rule.can_reject:
            plan.extend(_boundary_again())
            plan.append(Halving(goal=INNER, rounds=2))
            plan.extend(self._inner_stages(rule))
            plan.append(Halving(goal=INNER, rounds=2 if _has_path(rule) else 3))
        return (*plan, *_more_effort(_round(rule, 1, keep=1, restarts=10, steps=60), 1 / 16))

    def _outer_stages(self, rule: RejectionRule) -> list[Stage]:
        if _has_path(rule):
            return [
                climb(rule, "-donors"),
                climb(rule, "-random", starts=(1,), targets=1),
                _again(rule, "-again", keep=1, steps=40),
                _again(rule, "-fine", keep=1, steps=30, step=1 / 16, refresh=1),
                climb(rule, "-donors-2", starts=DonorStarts(keep=1, skip=1)),
            ]
        further = [_donors(rule, offset=20 * number) for number in (1, 2)]
        return [
            climb(rule, "-donors"),
            climb(rule, "-random", starts=(1,)),
            _again(rule, "-again", steps=100, step=1 / 8),
            climb(rule, "-donors-2", starts=further[0], step=1 / 8, gradient="exact"),
            _again(rule, "-again-2", steps=100, gradient="smoothed"),
            climb(rule, "-donors-3", starts=further[1], step=1 / 2),
            _again(rule, "-again-3", steps=100, step=1 / 2),
        ]

    def _inner_stages(self, rule: RejectionRule) -> list[Stage]:
        if not _has_path(rule):
            plan: list[Stage] = []
            starts = (0, 1) if rule.cost.total == 1 else (1,)
            for objective in rule.inner:
                fresh = _inner(objective, 40, 3, starts=starts, step=1 / 3, tag="-fresh")
                plan += [_inner(objective, 20, 6), fresh]
            return plan
        along = next((o for o in rule.inner if o.path), rule.inner[0])
        true = {"targets": 1, "stand_in": False, "refresh": 3, "tag": "-true"}
        return [_inner(along, 10, 5), *(_inner(o, 12, 2, **true) for o in rule.extra_inner)]


@dataclass(frozen=True, kw_only=True)
class Thorough:
    """The stages of `standard`, then rounds of new restarts until several find nothing more."""

    most: int = 12  #: Maximum number of rounds.
    cap: float = 60_000  #: No round starts after this many passes per image.
    patience: int = 3  #: Rounds in a row that find nothing, after which the search ends.
    name: str = "thorough"  #: The name in results.

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """The stages of `standard`, without its sample of more effort."""
        plan = Standard().stages(rule, eps)
        return tuple(stage for stage in plan if MORE_EFFORT not in stage.name)

    def more(self, rule: RejectionRule, eps: float, number: int) -> tuple[Stage, ...]:
        """The stages of a round, counted from 1; none after the last."""
        del eps
        return tuple(_round(rule, number)) if number <= self.most else ()


BUDGETS: Registry[Budget] = Registry("budget", "cpr_wrap.budgets")
BUDGETS.register("quick")(Quick())
BUDGETS.register("standard")(Standard())
BUDGETS.register("thorough")(Thorough())
BUDGETS.register("paper")(Paper())
BUDGETS.register("published")(Paper(as_published=True, name="published"))


def backtracking(eps: float, *, steps: int = 1000, restarts: int = 10) -> Attack:
    """CCAT's own evaluation: PGD with backtracking on the largest wrong probability.

    CCAT's base step of 0.001 becomes a share of eps.
    """
    return Attack(
        objective=other_confidence,
        goal=OUTER,
        steps=steps,
        step=0.001 / eps,
        momentum=0.9,
        backtrack=1.1,
        starts=tuple(range(1, restarts + 1)),
    )
