"""What an adversary wants large, as short functions of what the network said.

An objective never calls the network: a rejection rule makes a `View` of a point once, and every
objective, and the verdict on that point, is read off it.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cpr_wrap._code import code_text
from cpr_wrap.geometry import spread

# The paper's temperature of the smooth maximum.
TEMPERATURE = 100.0


class View(NamedTuple):
    """All that the network said about points z.

    Attributes:
        outputs: Outputs at z `(N, k + extra)`, with graph.
        shadow: Outputs at T(z) `(N, k + extra)`, with graph by the straight-through estimate, or
            None where nobody asked for them.
        accepted: The rule's verdict `(N,)`, or None where it would have cost extra passes.
        num_classes: k, the number of class columns.
    """

    outputs: Tensor
    shadow: Tensor | None
    accepted: Tensor | None
    num_classes: int

    @property
    def logits(self) -> Tensor:
        """Class logits at z `(N, k)`."""
        return self.outputs[:, : self.num_classes]

    @property
    def shadow_logits(self) -> Tensor:
        """Class logits at T(z) `(N, k)`."""
        if self.shadow is None:
            raise RuntimeError("this objective reads T(z); declare it with shadow=True")
        return self.shadow[:, : self.num_classes]

    @property
    def predicted(self) -> Tensor:
        """Predicted classes at z `(N,)`."""
        return self.logits.argmax(dim=1)


class Goal(enum.Enum):
    """What counts as a success of an attack."""

    REJECTED = "rejected"
    ACCEPTED_MISTAKE = "accepted mistake"
    MISTAKE = "mistake"  # of the network alone, accepted or not: its decision boundary

    def reached(self, predicted: Tensor, accepted: Tensor, y: Tensor) -> Tensor:
        """Tell for each row whether the goal is met.

        Args:
            predicted: Classes `(N,)`.
            accepted: Verdicts `(N,)`.
            y: True classes `(N,)`.

        Returns:
            Booleans `(N,)`.
        """
        if self is Goal.REJECTED:
            return ~accepted
        wrong = predicted != y
        return wrong if self is Goal.MISTAKE else accepted & wrong


class Targets(enum.Enum):
    """Which classes an objective is run for, one run each."""

    NONE = "none"
    OTHERS = "every class but the true one"
    ALL = "every class"


Terms = Callable[[View, Tensor, Tensor], tuple[Tensor, ...]]
Combine = Literal["sum", "orthogonal"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A function to be made large.

    Attributes:
        name: The paper's acronym where it has one.
        terms: Gives, from a view, true classes `(N,)` and target classes `(N,)`, the terms
            `(N,)` whose sum is the objective.
        targets: The classes it is run for.
        shadow: Whether it reads the outputs at T(z).
        combine: Climb the `sum` of the terms, or step on the smaller of two terms along its
            gradient made `orthogonal` to the other's.
    """

    name: str
    # Out of the repr, which is part of a store's key: a function's address differs in each process.
    terms: Terms = field(repr=False)
    targets: Targets = Targets.NONE
    shadow: bool = False
    combine: Combine = "sum"

    @property
    def fingerprint(self) -> str:
        """Eight digits that change with what the terms compute, for the keys of stored work."""
        return f"{zlib.crc32(code_text(self.terms).encode()):08x}"

    def ascent(self, view: View, y: Tensor, target: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Value and direction of climbing at points.

        Args:
            view: What the network said about `z`.
            y: True classes `(N,)`.
            target: Target classes `(N,)`.
            z: The leaf that the view was made from `(N, ...)`.

        Returns:
            The sum of the terms `(N,)` and a gradient `(N, ...)`, both without graph.
        """
        terms = self.terms(view, y, target)
        value = torch.stack([term.detach() for term in terms]).sum(dim=0)
        if self.combine == "sum":
            (gradient,) = torch.autograd.grad([term.sum() for term in terms], z)
            return value, gradient
        first, second = terms
        (g1,) = torch.autograd.grad(first.sum(), z, retain_graph=True)
        (g2,) = torch.autograd.grad(second.sum(), z)
        # Work on the term that lags, along what does not undo the other one.
        lagging = spread(first.detach() < second.detach(), z)
        return value, torch.where(lagging, _off(g1, g2), _off(g2, g1))


def _off(gradient: Tensor, other: Tensor) -> Tensor:
    """Remove from each row of `gradient` `(N, ...)` its part along `other`."""
    flat, along = gradient.flatten(1), other.flatten(1)
    # Squares of a sure network's gradients underflow; divided by the largest entry they do not.
    tiny = torch.finfo(flat.dtype).tiny
    along = along / along.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
    share = (flat * along).sum(dim=1) / along.square().sum(dim=1).clamp_min(tiny)
    return gradient - (share[:, None] * along).view_as(gradient)


def objective(
    name: str,
    *,
    targets: Targets = Targets.NONE,
    shadow: bool = False,
    combine: Combine = "sum",
) -> Callable[[Terms], Objective]:
    """Make an `Objective` of a function of (view, y, target)."""

    def make(terms: Terms) -> Objective:
        return Objective(name=name, terms=terms, targets=targets, shadow=shadow, combine=combine)

    return make


def log_prob(logits: Tensor, target: Tensor) -> Tensor:
    """Log-probability of the target class, `(N, k)` and `(N,)` to `(N,)`."""
    return logits.log_softmax(dim=1).gather(1, target[:, None]).squeeze(1)


def doubt(logits: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """-log of the largest probability, with a smooth maximum, `(N, k)` to `(N,)`."""
    return logits.logsumexp(dim=1) - (temperature * logits).logsumexp(dim=1) / temperature


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """How far a class leads the best other one, `(N, k)` and `(N,)` to `(N,)`."""
    own = logits.gather(1, label[:, None]).squeeze(1)
    rival = logits.scatter(1, label[:, None], -torch.inf).amax(dim=1)
    return own - rival


@objective("LCIA")
def low_confidence(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make the network unsure at z."""
    return (doubt(view.logits),)


@objective("HCMOA", targets=Targets.OTHERS)
def confident_mistake(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make the network sure of the target class at z."""
    return (log_prob(view.logits, target),)


@objective("PMOA", targets=Targets.OTHERS)
def probability_margin(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Lift the target's probability above the true class's (a margin that cannot run away)."""
    probs = view.logits.softmax(dim=1)
    return ((probs.gather(1, target[:, None]) - probs.gather(1, y[:, None])).squeeze(1),)


@objective("MARGIN")
def lost_margin(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make the true class trail the best other one: the way to the network's own boundary."""
    return (-margin(view.logits, y),)
