"""The paper's protocol: every attack at every alpha, by its text or by its published code."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_wrap._checks import check_positive
from cpr_wrap.attacks.adaptive import Attack, Stage
from cpr_wrap.attacks.autoattack import AutoAttackOnBase
from cpr_wrap.metrics.losses import PAPER_ALPHAS
from cpr_wrap.objective import Goal, Objective, Targets
from cpr_wrap.rule import RejectionRule


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The paper's protocol: every attack at every alpha, one point each, chosen by objective."""

    steps: int = 200  #: Steps of each restart.
    random_starts: int = 5  #: Random starts in addition to the start at zero.
    #: Step sizes in pixel units; by default eps · (1/3, 1/30, 1/60), which are the paper's 0.1,
    #: 0.01, 0.005 on MNIST. For SVHN and CIFAR-10 it uses 0.01, 0.005, 0.001.
    step_sizes: tuple[float, ...] | None = None
    alphas: tuple[float, ...] = PAPER_ALPHAS  #: Radii of the inner attacks, as shares of eps.
    #: Version of AutoAttack to run on the base network, or None to skip it.
    autoattack: str | None = "standard"
    #: Use the published code's choices where they differ from the text. It has no start at zero for
    #: attacks with targets, and a single random start for PDIA.
    as_published: bool = False
    name: str = "paper"  #: The name in results.

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
            (Goal.ACCEPTED_MISTAKE, rule.outer, (1.0,)),
            (Goal.REJECTED, rule.inner, inner_alphas),
        ):
            plan.extend(
                Attack(
                    objective=objective,
                    goal=goal,
                    steps=self.steps,
                    step=share,
                    step_of_eps=True,
                    starts=self._starts(objective),
                    alphas=alphas,
                    stand_in=False,
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
