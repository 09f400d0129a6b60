"""An attack is an objective, a goal and a way to climb. It only proposes; the evaluation judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from cpr_wrap.objective import Goal, Objective
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.solver import PGD

KNOWN = -1
"""The start that is the best point known so far, pulled into the row's ball."""

Select = Literal["success", "loss"]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One way to search for points that reach a goal.

    Attributes:
        objective: What to make large.
        goal: What counts.
        iterations: Points evaluated in one climb.
        step: Step size as a share of the row's radius.
        step_of_eps: Take `step` as a share of eps instead, whatever the row's radius (the paper's
            choice for its inner attacks).
        momentum: As in `PGD`.
        backtrack: As in `PGD`.
        starts: Where climbs begin: 0 is the image itself, n > 0 the n-th random start, `KNOWN`
            the best point known.
        targets: How many of the likeliest target classes to aim at; None for all.
        alphas: Radii as shares of eps, tried in this order. Of no meaning with `rounds`.
        rounds: If positive, search for the smallest radius that reaches the goal: in this many
            rounds, each in a ball smaller than the smallest radius known.
        stride: By what share the first of these rounds goes below that radius.
        steer: Climb with the rule's cheaper stand-in; the true rule judges in any case.
        select: Propose each climb's candidate that seems to reach the goal (`success`), or only
            the one point of the largest objective over all starts and targets (`loss`), as the
            paper does.
        tag: Put behind the objective's name in tables, where one objective is used twice.
    """

    objective: Objective
    goal: Goal
    iterations: int
    step: float
    step_of_eps: bool = False
    momentum: float = 0.9
    backtrack: float | None = None
    starts: tuple[int, ...] = (0,)
    targets: int | None = None
    alphas: tuple[float, ...] = (1.0,)
    rounds: int = 0
    stride: float = 0.1
    steer: bool = True
    select: Select = "success"
    tag: str = ""

    @property
    def name(self) -> str:
        """The objective's name and the tag."""
        return f"{self.objective.name}{self.tag}"

    def pgd(self, norm: str) -> PGD:
        """How a climb steps; the step size itself is given row by row."""
        return PGD(
            steps=self.iterations,
            step_size=self.step,
            momentum=self.momentum,
            norm=norm,
            backtrack=self.backtrack,
        )


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Walk back from known successes towards the image, halving the segment with the true rule.

    Attributes:
        goal: `REJECTED` (from the point rejected closest to the image, or else from the network's
            boundary) or `MISTAKE` (along the way to the network's boundary).
        rounds: Points asked about for each image.
    """

    goal: Goal
    rounds: int

    @property
    def name(self) -> str:
        """The name in tables."""
        return "halving" if self.goal is Goal.REJECTED else "boundary halving"


class Proposer(Protocol):
    """An attack from elsewhere. It need not respect eps or know the goal."""

    @property
    def name(self) -> str:
        """The name in tables."""
        ...

    def perturb(
        self,
        model: SelectiveClassifier,
        x: Tensor,
        y: Tensor,
        eps: float,
        *,
        norm: str,
        seed: int,
        index: Tensor,
    ) -> Tensor:
        """Propose one point for each image.

        Args:
            model: The selective classifier under attack.
            x: Images `(N, ...)`.
            y: True classes `(N,)`.
            eps: Budget in pixel units.
            norm: `Linf` or `L2`.
            seed: The run's seed.
            index: The images' numbers in their data set `(N,)`, for random starts.

        Returns:
            Points `(N, ...)`.
        """
        ...


Stage = Attack | Halving | Proposer
"""One step of an evaluation, done for a whole block of images before the next."""
