"""Objectives: what an adversary maximizes, as short functions of the network's outputs.

An objective never calls the network. A rejection rule makes a `View` of a point once; every
objective, and the verdict on that point, is computed from it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpr_wrap.meter import tally

# The paper's temperature of the smooth maximum.
TEMPERATURE = 100.0


class Aim(NamedTuple):
    """True classes `(N,)` and target classes `(N,)` of an attack's rows."""

    label: Tensor
    target: Tensor


class Path(NamedTuple):
    """The path of a rule from points z, e.g. to T(z), without graph.

    Attributes:
        points: The requested points `(N, ...)`, in order; the last is the end of the path.
        lead: The smallest score on the path before its end `(N,)`.
        outputs: Outputs at z `(N, k + extra)`, or None if they are not known.
    """

    points: tuple[Tensor, ...]
    lead: Tensor
    outputs: Tensor | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """The network's outputs at points z, and what follows from them.

    Attributes:
        z: The points `(N, ...)`.
        outputs: Outputs at z `(N, k + extra)`, with graph if gradients are enabled.
        num_classes: k, the number of class columns.
        path: Outputs `(N, k + extra)` at the requested points of the rule's own path, with the
            straight-through gradient; empty if none were requested.
        points: These points `(N, ...)`, without graph.
        score: The rule's score `(N,)`, with graph if it is differentiable; None if it would cost
            passes and was not requested.
        threshold: Scores of at least this are accepted.
        aim: True and target classes, for objectives.
    """

    z: Tensor
    outputs: Tensor
    num_classes: int
    path: tuple[Tensor, ...] = ()
    points: tuple[Tensor, ...] = ()
    score: Tensor | None = None
    threshold: float = 0.0
    aim: Aim | None = None

    @property
    def logits(self) -> Tensor:
        """Class logits at z `(N, k)`."""
        return self.outputs[:, : self.num_classes]

    @property
    def path_logits(self) -> tuple[Tensor, ...]:
        """Class logits `(N, k)` at the requested points of the path."""
        if not self.path:
            raise RuntimeError("this objective reads the rule's path; declare it with path=(1.0,)")
        return tuple(outputs[:, : self.num_classes] for outputs in self.path)

    @property
    def end_logits(self) -> Tensor:
        """Class logits at the last of these points, T(z) for CPR `(N, k)`."""
        return self.path_logits[-1]

    @property
    def known_score(self) -> Tensor:
        """The score `(N,)`, for objectives that declare `score=True`."""
        if self.score is None:
            raise RuntimeError("this objective reads the rule's score; declare it with score=True")
        return self.score

    @property
    def predicted(self) -> Tensor:
        """Predicted classes at z `(N,)`."""
        return self.logits.argmax(dim=1)

    @property
    def accepted(self) -> Tensor | None:
        """The rule's verdict `(N,)`, or None where the score is not known."""
        return None if self.score is None else self.score.detach() >= self.threshold

    @property
    def label(self) -> Tensor:
        """True classes `(N,)`."""
        return self._aim.label

    @property
    def target(self) -> Tensor:
        """Target classes `(N,)`."""
        return self._aim.target

    @property
    def _aim(self) -> Aim:
        if self.aim is None:
            raise RuntimeError("this view was made without true and target classes")
        return self.aim

    def promise(self, target: Tensor) -> Tensor:
        """How far points are from being accepted as a target class `(N,)`; at least 0 if they are.

        The smaller of the class's lead at z and, where the rule has a path, at its end; else of
        the score's distance to the threshold.
        """
        lead = margin(self.logits, target)
        if self.path:
            return torch.minimum(lead, margin(self.end_logits, target))
        return lead if self.score is None else torch.minimum(lead, self.score - self.threshold)

    def ask(self, network: nn.Module) -> Tensor:
        """Outputs of another network at z; counted as a pass."""
        outputs: Tensor = network(tally(self.z))
        return outputs


class Goal(enum.Enum):
    """What counts as a success of an attack."""

    REJECTED = "rejected"  #: The input is rejected.
    ACCEPTED_MISTAKE = "accepted mistake"  #: It is accepted, and the prediction is wrong.
    MISTAKE = "mistake"  #: The network's prediction is wrong, accepted or not.

    def reached(self, predicted: Tensor, accepted: Tensor, y: Tensor) -> Tensor:
        """Whether each row reaches the goal.

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
    """The target classes of an objective; it runs once per target."""

    NONE = "none"  #: No target.
    OTHERS = "every class but the true one"  #: Every class but the true one.
    ALL = "every class"  #: Every class.


Terms = Callable[[View], tuple[Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A function to maximize.

    Attributes:
        name: The paper's acronym where it has one.
        terms: Function from a view to the terms `(N,)` whose sum is the objective.
        targets: Its target classes.
        path: The points of the rule's own path that it reads, as shares of the path: `(1.0,)` is
            the end, T(z) for CPR.
        score: Whether it reads the rule's score.
    """

    name: str
    # Out of the repr, which is part of a store's key: a function's address differs in each process.
    terms: Terms = field(repr=False)
    targets: Targets = Targets.NONE
    path: tuple[float, ...] = ()
    score: bool = False

    def value(self, view: View, aim: Aim) -> Tensor:
        """The sum of the terms `(N,)`, without graph."""
        terms = self.terms(replace(view, aim=aim))
        return torch.stack([term.detach() for term in terms]).sum(dim=0)

    def ascent(self, view: View, aim: Aim) -> tuple[Tensor, Tensor]:
        """Value and direction of ascent at the points of a view.

        Args:
            view: A view whose `z` `(N, ...)` is a leaf.
            aim: True and target classes.

        Returns:
            The sum of the terms `(N,)` and a gradient `(N, ...)`, both without graph.
        """
        terms = self.terms(replace(view, aim=aim))
        if not all(term.requires_grad for term in terms):
            raise RuntimeError(
                f"objective {self.name!r} cannot be climbed, since no gradient reaches the input: "
                "what it reads was detached, or is a step function"
            )
        value = torch.stack([term.detach() for term in terms]).sum(dim=0)
        (gradient,) = torch.autograd.grad([term.sum() for term in terms], view.z)
        return value, gradient


def objective(
    name: str,
    *,
    targets: Targets = Targets.NONE,
    path: tuple[float, ...] = (),
    score: bool = False,
) -> Callable[[Terms], Objective]:
    """Decorator that turns a function of a view into an `Objective`.

    Example:
        >>> from torch import Tensor
        >>> from cpr_wrap.objective import View, doubt
        >>> @objective("FLAT")
        ... def flat(view: View) -> tuple[Tensor, ...]:
        ...     return (doubt(view.logits),)
        >>> flat.name
        'FLAT'
    """

    def make(terms: Terms) -> Objective:
        return Objective(name=name, terms=terms, targets=targets, path=path, score=score)

    return make


def log_prob(logits: Tensor, target: Tensor) -> Tensor:
    """Log-probability of the target class, `(N, k)` and `(N,)` to `(N,)`."""
    return logits.log_softmax(dim=1).gather(1, target[:, None]).squeeze(1)


def doubt(logits: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """-log of the largest probability, with a smooth maximum, `(N, k)` to `(N,)`."""
    return logits.logsumexp(dim=1) - (temperature * logits).logsumexp(dim=1) / temperature


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """Margin of a class over the best other class, `(N, k)` and `(N,)` to `(N,)`."""
    own = logits.gather(1, label[:, None]).squeeze(1)
    rival = logits.scatter(1, label[:, None], -torch.inf).amax(dim=1)
    return own - rival


@objective("LCIA")
def low_confidence(view: View) -> tuple[Tensor, ...]:
    """Make the network unsure at z."""
    return (doubt(view.logits),)


@objective("HCMOA", targets=Targets.OTHERS)
def confident_mistake(view: View) -> tuple[Tensor, ...]:
    """Make the network sure of the target class at z."""
    return (log_prob(view.logits, view.target),)


@objective("MARGIN")
def lost_margin(view: View) -> tuple[Tensor, ...]:
    """Make the margin of the true class negative: search for the network's own boundary."""
    return (-margin(view.logits, view.label),)


@objective("LOW-SCORE", score=True)
def low_score(view: View) -> tuple[Tensor, ...]:
    """Lower the rule's score, whatever it is: an inner attack on any differentiable rule."""
    return (-view.known_score,)


@objective("SCORED-MISTAKE", targets=Targets.OTHERS, score=True)
def scored_mistake(view: View) -> tuple[Tensor, ...]:
    """Make the target likely and the score high: an outer attack on any differentiable rule."""
    return (log_prob(view.logits, view.target), view.known_score)
