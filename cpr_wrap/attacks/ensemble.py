"""Which attacks, at which settings, in which order: the budgets quick, standard and paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from cpr_wrap._checks import check_positive
from cpr_wrap._registry import Registry
from cpr_wrap.attacks.adaptive import KNOWN, Attack, Halving, Stage
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.objective import Goal, Objective, Targets, lost_margin
from cpr_wrap.rules.confidence import other_confidence
from cpr_wrap.selective import RejectionRule

OUTER, INNER = Goal.ACCEPTED_MISTAKE, Goal.REJECTED

PAPER_ALPHAS = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 1.0)

# With more classes than this, only as many of the likeliest targets are aimed at.
MOST_TARGETS = 9


class Budget(Protocol):
    """A plan of stages for a rule."""

    @property
    def name(self) -> str:
        """The name in results."""
        ...

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """The stages in order."""
        ...


# Short climbs lose too many steps to the paper's momentum of 0.9, whose first steps are tiny: on a
# robust MNIST network 12 steps reach the boundary of 24 of 60 images with it, of 56 with this one.
_MOMENTUM = 0.75


def _boundary() -> list[Stage]:
    """The network's own boundary: the way to rejections, and the theory's distances."""
    reach = Attack(
        objective=lost_margin,
        goal=Goal.MISTAKE,
        iterations=40,
        step=0.3,
        momentum=_MOMENTUM,
        rounds=1,
    )
    closer = replace(
        reach, iterations=10, step=0.2, starts=(KNOWN,), rounds=4, stride=0.15, tag="-closer"
    )
    return [reach, closer, Halving(goal=Goal.MISTAKE, rounds=4)]


def _boundary_again() -> list[Stage]:
    """For images whose boundary was not found, or not by the shortest way."""
    reach, closer, halving = _boundary()
    assert isinstance(reach, Attack)
    assert isinstance(closer, Attack)
    far = replace(reach, iterations=60, momentum=0.9, starts=(1,), tag="-far")
    return [far, replace(closer, rounds=3, stride=0.1, tag="-again"), halving]


def _outer(objective: Objective, iterations: int) -> Attack:
    return Attack(
        objective=objective,
        goal=OUTER,
        iterations=iterations,
        step=1 / 3,
        momentum=_MOMENTUM,
        targets=MOST_TARGETS,
    )


def _inner(objective: Objective, iterations: int, rounds: int) -> Attack:
    return Attack(
        objective=objective,
        goal=INNER,
        iterations=iterations,
        step=0.15,
        momentum=_MOMENTUM,
        starts=(KNOWN,),
        rounds=rounds,
        stride=0.05,
    )


@dataclass(frozen=True)
class Quick:
    """A first look, at most 1,000 passes an image on ten classes; the beginning of `standard`."""

    name: str = "quick"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:  # noqa: ARG002
        """Boundary, the likeliest targets, and the smallest rejected radius along the boundary."""
        plan = _boundary()
        plan.append(replace(_outer(rule.outer[-1], 20), targets=3, tag="-likely"))
        if rule.can_reject:
            plan.append(Halving(goal=INNER, rounds=3))
            rounds = 3 if rule.needs_gradient else 5
            plan.append(replace(_inner(rule.inner[0], 10, rounds), tag="-first"))
        return tuple(plan)


@dataclass(frozen=True)
class Standard:
    """The default, at most 10,000 passes an image on ten classes, and 20 steps of CPR."""

    name: str = "standard"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """What `quick` does, then the whole ensemble and its additions."""
        plan = list(Quick().stages(rule, eps))
        plan.append(AutoAttackOnBase(version="small"))
        if rule.can_reject and not rule.needs_gradient:
            plan.append(AdaptiveAutoAttack(n_iter=100))
        for objective in (*rule.outer, *rule.extra_outer):
            plan.extend(self._outer_stages(objective, rule))
        if not rule.can_reject:
            return tuple(plan)
        plan.extend(_boundary_again())
        plan.append(Halving(goal=INNER, rounds=2))
        for objective in rule.inner:
            plan.extend(self._inner_stages(objective, rule))
        plan.append(Halving(goal=INNER, rounds=3))
        return tuple(plan)

    def _outer_stages(self, objective: Objective, rule: RejectionRule) -> list[Stage]:
        if rule.needs_gradient:
            return self._costly_outer_stages(objective, rule)
        climb = replace(_outer(objective, 40), starts=(0, 1))
        if objective not in rule.outer:
            return [climb]
        # Where confidence is asked for, steps that are small, and a long way with much momentum,
        # each find what the other and many short climbs do not.
        slow = replace(climb, iterations=100, starts=(3,), step=0.1, tag="-slow")
        far = replace(climb, iterations=100, starts=(2,), momentum=0.9, tag="-far")
        return [climb, slow, far]

    def _costly_outer_stages(self, objective: Objective, rule: RejectionRule) -> list[Stage]:
        """For a rule whose verdict costs many passes."""
        zero = _outer(objective, 20)
        fresh = replace(zero, starts=(1,))
        if objective not in rule.outer:
            return [replace(fresh if objective.shadow else zero, targets=3)]
        if not objective.shadow:
            return [zero]
        # Another start or step size finds what more iterations do not. The stand-in for T is too
        # kind to networks that bend within its radius: there only T itself leads anywhere.
        slow = replace(_outer(objective, 30), step=0.1, tag="-slow")
        true = replace(_outer(objective, 25), starts=(1,), targets=2, steer=False, tag="-true")
        return [fresh, slow, true]

    def _inner_stages(self, objective: Objective, rule: RejectionRule) -> list[Stage]:
        if objective.targets is Targets.ALL:
            return [replace(_inner(objective, 10, 3), targets=2)]
        if objective.shadow:
            fresh = replace(_inner(objective, 20, 3), starts=(0, 1), step=1 / 3, tag="-fresh")
            return [_inner(objective, 10, 5), fresh]
        if rule.needs_gradient:
            return [_inner(objective, 15, 4)]
        fresh = replace(_inner(objective, 40, 3), starts=(0, 1), step=1 / 3, tag="-fresh")
        return [_inner(objective, 20, 6), fresh]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The paper's protocol: every attack at every alpha, one candidate each, chosen by objective.

    Attributes:
        iterations: Steps of each climb.
        random_starts: Random starts beside the start at zero.
        step_sizes: Step sizes in pixel units; by default eps · (1/3, 1/30, 1/60), which are the
            paper's 0.1, 0.01, 0.005 on MNIST. For SVHN and CIFAR-10 it uses 0.01, 0.005, 0.001.
        alphas: Where the inner attacks are run.
        autoattack: Version of AutoAttack run on the base network, or None to leave it out.
        as_published: Take the published code's choices where they differ from the text: no start
            at zero for attacks with targets, and a single random start for PDIA.
        name: The name in results.
    """

    iterations: int = 200
    random_starts: int = 5
    step_sizes: tuple[float, ...] | None = None
    alphas: tuple[float, ...] = PAPER_ALPHAS
    autoattack: str | None = "standard"
    as_published: bool = False
    name: str = "paper"

    def __post_init__(self) -> None:
        for size in self.step_sizes or ():
            check_positive(size, "step_sizes")

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """AutoAttack, then each outer attack, then each inner one, with every step size."""
        plan: list[Stage] = []
        if self.autoattack is not None:
            plan.append(AutoAttackOnBase(version=self.autoattack))
        if self.step_sizes is None:
            shares: tuple[float, ...] = (1 / 3, 1 / 30, 1 / 60)
        else:
            shares = tuple(size / eps for size in self.step_sizes)
        inner_alphas = tuple(alpha for alpha in sorted(self.alphas) if alpha > 0)
        for goal, objectives, alphas in (
            (OUTER, rule.outer, (1.0,)),
            (INNER, rule.inner, inner_alphas),
        ):
            plan.extend(
                Attack(
                    objective=objective,
                    goal=goal,
                    iterations=self.iterations,
                    step=share,
                    step_of_eps=True,
                    starts=self._starts(objective),
                    alphas=alphas,
                    steer=False,
                    select="loss",
                    tag=f"/{number + 1}" if len(shares) > 1 else "",
                )
                for objective in objectives
                for number, share in enumerate(shares)
            )
        return tuple(plan)

    def _starts(self, objective: Objective) -> tuple[int, ...]:
        if self.as_published and objective.targets is not Targets.NONE:
            return (
                (1,)
                if objective.targets is Targets.ALL
                else tuple(range(1, self.random_starts + 1))
            )
        return tuple(range(self.random_starts + 1))


BUDGETS: Registry[Budget] = Registry("budget")
BUDGETS.register("quick")(Quick())
BUDGETS.register("standard")(Standard())
BUDGETS.register("paper")(Paper())
BUDGETS.register("published")(Paper(as_published=True, name="published"))


def backtracking(eps: float, *, iterations: int = 1000, restarts: int = 10) -> Attack:
    """CCAT's own evaluation: PGD with backtracking on the largest wrong probability.

    Args:
        eps: The budget, to express CCAT's base step of 0.001 as a share of it.
        iterations: Steps of each climb.
        restarts: Random starts.
    """
    return Attack(
        objective=other_confidence,
        goal=OUTER,
        iterations=iterations,
        step=0.001 / eps,
        momentum=0.9,
        backtrack=1.1,
        starts=tuple(range(1, restarts + 1)),
    )
