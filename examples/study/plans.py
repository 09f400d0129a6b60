"""Plans of attack that only the study needs: one attack alone, and all attacks on equal terms."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cpr_wrap.attacks.adaptive import Attack, Halving, Stage
from cpr_wrap.attacks.autoattack import AutoAttackOnBase
from cpr_wrap.attacks.ensemble import Standard, backtracking
from cpr_wrap.objective import Goal, Objective, Targets, confident_mistake
from cpr_wrap.selective import RejectionRule

OUTER, INNER = Goal.ACCEPTED_MISTAKE, Goal.REJECTED


@dataclass(frozen=True, kw_only=True)
class AutoAttackAlone:
    """AutoAttack on the network, as the paper judges classifiers that never reject.

    Attributes:
        version: Of AutoAttack: `small` or `standard`.
    """

    version: str = "standard"

    @property
    def name(self) -> str:
        """The name in results."""
        return "AutoAttack" if self.version == "standard" else f"AutoAttack-{self.version}"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:  # noqa: ARG002
        """The one stage."""
        return (AutoAttackOnBase(version=self.version),)


@dataclass(frozen=True, kw_only=True)
class HighConfidence:
    """HCMOA alone, with several step sizes: the paper's attack on CCAT.

    Attributes:
        iterations: Steps of each climb, the paper's.
        starts: 0 is the image, others are random; the paper takes five random ones.
        sizes: Step sizes in pixel units, the paper's.
    """

    iterations: int = 200
    starts: tuple[int, ...] = (0, 1)
    sizes: tuple[float, ...] = (0.1, 0.01, 0.005)
    name: str = "HCMOA"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:  # noqa: ARG002
        """One stage a step size."""
        return tuple(
            Attack(
                objective=confident_mistake,
                goal=OUTER,
                iterations=self.iterations,
                step=size / eps,
                starts=self.starts,
                tag=f"/{number + 1}",
            )
            for number, size in enumerate(self.sizes)
        )


@dataclass(frozen=True, kw_only=True)
class Backtracking:
    """PGD with backtracking alone: CCAT's own attack, which the paper sets HCMOA against.

    Attributes:
        iterations: Steps of each climb; the paper takes 1,000.
        restarts: Random starts; the paper takes 10.
    """

    iterations: int = 1000
    restarts: int = 10
    name: str = "PGD-backtracking"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:  # noqa: ARG002
        """The one stage."""
        return (backtracking(eps, iterations=self.iterations, restarts=self.restarts),)


@dataclass(frozen=True, kw_only=True)
class Rejections:
    """What `standard` does to have inputs rejected, and no more.

    In a whole evaluation nobody looks for a rejection any more once an accepted mistake was found.
    """

    name: str = "rejections alone"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """The stages of `standard` that do not look for accepted mistakes."""
        ours = (
            stage for stage in Standard().stages(rule, eps) if isinstance(stage, Attack | Halving)
        )
        return tuple(stage for stage in ours if stage.goal is not OUTER)


@dataclass(frozen=True, kw_only=True)
class EqualTerms:
    """The paper's attacks on a rule, all with the same iterations, starts and step sizes.

    Its own ensembles favour some attacks, which would decide a comparison beforehand.

    Attributes:
        iterations: Steps of each climb.
        starts: 0 is the image, others are random.
        steps: Step sizes as shares of eps.
        momentum: Of each climb.
        targets: Target classes for inner attacks that aim at all of them; outer ones take nine.
        version: Of AutoAttack.
    """

    iterations: int = 20
    starts: tuple[int, ...] = (0, 1)
    steps: tuple[float, ...] = (1 / 3, 1 / 10)
    momentum: float = 0.75
    targets: int = 3
    version: str = "small"
    name: str = "equal terms"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:  # noqa: ARG002
        """AutoAttack, the outer attacks in the ball of eps, the inner ones in the same ball."""
        plan: list[Stage] = [AutoAttackOnBase(version=self.version)]
        for goal, objectives in ((OUTER, rule.outer), (INNER, rule.inner)):
            for objective in objectives:
                plan.extend(self._attack(objective, goal, step) for step in self.steps)
        return tuple(plan)

    def _attack(self, objective: Objective, goal: Goal, step: float) -> Attack:
        return Attack(
            objective=objective,
            goal=goal,
            iterations=self.iterations,
            step=step,
            momentum=self.momentum,
            starts=self.starts,
            targets=self.targets if objective.targets is Targets.ALL else 9,
            tag=f"@{step:.2g}",
        )


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """`standard`, and then the rule's strongest outer attack with far more effort.

    Attributes:
        iterations: Steps of each long climb.
        starts: 0 is the image, others are random.
        steps: Step sizes as shares of eps.
        true_iterations: Steps of a climb from the image that is led by the rule itself.
    """

    iterations: int = 100
    starts: tuple[int, ...] = (0, 1, 2)
    steps: tuple[float, ...] = (1 / 3, 1 / 10, 1 / 30)
    true_iterations: int = 40
    name: str = "beyond standard"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Stage, ...]:
        """The stages of `standard`, one more a step size, and the one without a stand-in."""
        long = Attack(
            objective=rule.outer[-1],
            goal=OUTER,
            iterations=self.iterations,
            step=self.steps[0],
            momentum=0.75,
            starts=self.starts,
            targets=9,
        )
        more = [replace(long, step=step, tag=f"-long@{step:.2g}") for step in self.steps]
        true = replace(
            long, iterations=self.true_iterations, step=0.1, starts=(0,), steer=False, tag="-true"
        )
        return (*Standard().stages(rule, eps), *more, true)
