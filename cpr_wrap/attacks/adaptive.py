"""An attack is an objective, a goal and search settings. It only proposes; the engine judges."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from cpr_wrap._checks import check_count
from cpr_wrap._files import digest
from cpr_wrap._registry import Registry
from cpr_wrap.attacks.donors import DonorStarts, NearMisses
from cpr_wrap.objective import Goal, Objective
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.smoothing import STRENGTH
from cpr_wrap.solver import PGD

KNOWN = -1
"""Start at the best point known so far, projected into the row's ball."""

Select = Literal["success", "loss"]
Gradient = Literal["exact", "smoothed", "alternating"]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A gradient attack: an objective, a goal and how to search.

    Example:
        >>> from cpr_wrap.objective import Goal, lost_margin
        >>> attack = Attack(objective=lost_margin, goal=Goal.MISTAKE, steps=9, step=0.1, tag="-9")
        >>> attack.name
        'MARGIN-9'
    """

    objective: Objective  #: What to maximize.
    goal: Goal  #: What counts as a success.
    steps: int  #: Steps per restart.
    step: float  #: Step size as a share of the row's radius.
    #: Take `step` as a share of eps instead of the row's radius, as the paper does for its inner
    #: attacks.
    step_of_eps: bool = False
    momentum: float = 0.9  #: As in `PGD`.
    backtrack: float | None = None  #: As in `PGD`.
    shrink: float = 1.0  #: As in `PGD`.
    #: Where restarts begin, 0 at the image itself, n > 0 at the n-th random start, `KNOWN` at the
    #: best point known; or restarts from donors, or from near misses of earlier stages.
    starts: tuple[int, ...] | DonorStarts | NearMisses = (0,)
    targets: int | None = None  #: How many of the likeliest target classes to aim at; None for all.
    #: Radii to search in, as shares of eps, in this order. Not used with `rounds`.
    alphas: tuple[float, ...] = (1.0,)
    #: If positive, search for the smallest radius that reaches the goal, in this many rounds. Each
    #: round searches a ball smaller than the smallest known radius.
    rounds: int = 0
    #: How far below the known radius the first round searches, as a share of it.
    stride: float = 0.1
    #: Search with the rule's cheaper substitute. The true rule judges in any case.
    stand_in: bool = True
    aimed: bool = False  #: Compute the rule's own path as if the target class were predicted.
    #: Recompute the rule's own path after this many steps, and reuse it in between.
    refresh: int = 1
    #: `exact`, `smoothed` (see `cpr_wrap.smoothing`), or `alternating` between the two.
    gradient: Gradient = "exact"
    strength: float = STRENGTH  #: Strength of the smoothing.
    sample: float = 1.0  #: Share of the images to attack, chosen by a hash of their numbers.
    #: Keep the last point of each restart, for stages that start from near misses.
    remember: bool = False
    #: `success` proposes every candidate that seems to reach the goal. `loss` proposes only the
    #: point with the largest objective over all starts and targets, as the paper does.
    select: Select = "success"
    tag: str = ""  #: Appended to the objective's name in tables, if one objective is used twice.

    def __post_init__(self) -> None:
        if self.gradient not in ("exact", "smoothed", "alternating"):
            raise ValueError(
                f"gradient: expected exact, smoothed or alternating, got {self.gradient!r}"
            )
        check_count(self.refresh, "refresh")
        if not 0 < self.sample <= 1:
            raise ValueError(f"sample: expected a share in (0, 1], got {self.sample}")

    @property
    def name(self) -> str:
        """The objective's name and the tag."""
        return f"{self.objective.name}{self.tag}"

    def pgd(self, norm: str) -> PGD:
        """Solver settings of a restart; the step size itself is set per row."""
        return PGD(
            steps=self.steps,
            step_size=self.step,
            momentum=self.momentum,
            norm=norm,
            backtrack=self.backtrack,
            shrink=self.shrink,
        )


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Bisect the segment from a known success to the image, with the true rule."""

    #: `REJECTED` starts at the closest rejected point, or else at the network's boundary. `MISTAKE`
    #: starts at the closest mistake of the network.
    goal: Goal
    rounds: int  #: Points to judge per image.

    @property
    def name(self) -> str:
        """The name in tables."""
        return "halving" if self.goal is Goal.REJECTED else "boundary halving"


class Proposer(Protocol):
    """The protocol of your own attacks. A proposer need not respect eps or know the goal.

    An optional attribute `goal` says what it searches for, accepted mistakes by default. The engine
    then skips images on which nothing is left to find.
    """

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
        """Propose one point per image.

        Args:
            model: The selective classifier under attack.
            x: Images `(N, ...)`.
            y: True classes `(N,)`.
            eps: Budget in pixel units.
            norm: `Linf` or `L2`.
            seed: The run's seed.
            index: The images' numbers in their data set `(N,)`, for random starts.

        Returns:
            Points `(N, ...)`. Every verdict on them counts, for whichever goal it reaches.
        """
        ...


Stage = Attack | Halving | Proposer
"""One step of an evaluation. It runs on a whole block of images before the next one starts."""

ATTACKS: Registry[Any] = Registry("attack", "cpr_wrap.attacks")
"""Other attacks by name: stages, classes of stages, or plain functions."""


@dataclass(frozen=True)
class FunctionAttack:
    """A plain function `perturb(model, x, y, eps)` as an attack."""

    #: Returns points `(N, ...)` for images `(N, ...)`. It may also take the keywords `norm`, `seed`
    #: and `index`.
    function: Callable[..., Tensor]
    goal: Goal = Goal.ACCEPTED_MISTAKE  #: What it searches for.

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def perturb(
        self, model: SelectiveClassifier, x: Tensor, y: Tensor, eps: float, **offered: Any
    ) -> Tensor:
        """Propose one point per image; see `Proposer`."""
        taken = inspect.signature(self.function).parameters
        every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
        more = {key: value for key, value in offered.items() if every or key in taken}
        return self.function(model, x, y, eps, **more)


def as_stage(thing: Any) -> Stage:
    """Turn a stage, a stage class without required settings, or a plain function into a stage."""
    if isinstance(thing, type):
        thing = thing()
    if isinstance(thing, Attack | Halving):
        return thing
    if callable(getattr(thing, "perturb", None)):
        if not isinstance(getattr(thing, "name", None), str):
            raise TypeError(
                f"expected an attack with a name, got {thing!r}; add an attribute `name`"
            )
        stage: Proposer = thing
        return stage
    if callable(thing):
        return FunctionAttack(thing)
    raise TypeError(
        "expected an attack: a stage, an object with a name and a method "
        f"perturb(model, x, y, eps, ...), or such a function; got {type(thing).__name__}"
    )


def goal_of(stage: Stage) -> Goal:
    """The goal of a stage; accepted mistakes if it declares none."""
    goal = getattr(stage, "goal", None)
    return goal if isinstance(goal, Goal) else Goal.ACCEPTED_MISTAKE


@dataclass(frozen=True, eq=False)
class GivenPoints:
    """A stage that judges points instead of searching for them."""

    index: Tensor  # numbers of the images that the points belong to (M,); one may come twice
    points: Tensor  # (M, ...)
    source: str = ""

    name, goal = "given points", Goal.ACCEPTED_MISTAKE

    def __repr__(self) -> str:
        return f"GivenPoints({len(self.index)} points, {digest(self.index, self.points)[:16]})"
