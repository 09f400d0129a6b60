"""Foolbox both ways: its attacks in our evaluation, and a selective classifier as its model.

Importing this module imports Foolbox, which is slow.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from cpr_wrap._checks import check_count, import_extra
from cpr_wrap._registry import Registry
from cpr_wrap.attacks.adapters import RejectLogits
from cpr_wrap.attacks.guests import Group, GroupAttack, batch_seed, guest
from cpr_wrap.geometry import spread, threat
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier, network_device

foolbox, ep = import_extra("foolbox"), import_extra("eagerpy")


def to_foolbox(
    model: SelectiveClassifier,
    *,
    goal: Goal = Goal.ACCEPTED_MISTAKE,
    labels: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Any:
    """A selective classifier as a `foolbox.PyTorchModel` with k + 1 columns and bounds (0, 1).

    The arg max is the answer: a class, or k if the input is rejected. The goal decides which
    gradient the reject column has (see `RejectLogits`), so choose the goal of your attack.

    Args:
        model: The selective classifier; it is not moved to another device.
        goal: What the attack searches for. `ACCEPTED_MISTAKE` goes with the criterion
            `AcceptedMisclassification`, `REJECTED` with `Rejected`.
        labels: True classes `(N,)` of the images to attack, for stronger columns: a rejected point
            then shows its true class. Only for accepted mistakes.
        device: Device of the model, if it has no parameters.

    Returns:
        A `FoolboxModel`; its `criterion(x, y)` is the one that goes with the goal.

    Example:
        >>> import torch
        >>> from cpr_wrap import Confidence, SelectiveClassifier
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
        >>> model = SelectiveClassifier(network, Confidence(threshold=1.0))  # rejects everything
        >>> to_foolbox(model)(torch.rand(2, 1, 2, 2)).argmax(dim=1).tolist()
        [3, 3]
    """
    if goal not in (Goal.ACCEPTED_MISTAKE, Goal.REJECTED):
        raise ValueError(f"goal: expected ACCEPTED_MISTAKE or REJECTED, got {goal}")
    if goal is Goal.REJECTED and labels is not None:
        raise ValueError("labels: expected None for the goal REJECTED, which does not use them")
    view = RejectLogits(model, goal, labels=labels)
    return FoolboxModel(view, goal, device or network_device(model))


class AcceptedMisclassification(foolbox.criteria.Misclassification):  # type: ignore[misc, name-defined]
    """Success if the point is accepted as a wrong class. A rejection does not count.

    Args:
        labels: True classes `(N,)`.
    """

    def __call__(self, perturbed: Any, outputs: Any) -> Any:  # noqa: ARG002
        """Which points `(N, ...)` succeed, by their columns."""
        columns, restore = ep.astensor_(outputs)
        answer = columns.argmax(axis=-1)
        wrong = answer != self.labels
        return restore(ep.logical_and(wrong, answer != columns.shape[-1] - 1))


class Rejected(foolbox.criteria.TargetedMisclassification):  # type: ignore[misc, name-defined]
    """Success if the point is rejected: the last column is the largest.

    Args:
        labels: True classes `(N,)`. Gradient attacks need them, and `num_classes`, to find the
            reject column; other attacks need neither.
        num_classes: Number of classes k, without the reject column.
    """

    def __init__(self, labels: Any = None, num_classes: int | None = None) -> None:
        self._target: Any = None
        if labels is not None and num_classes is not None:
            self._target = ep.zeros_like(ep.astensor(labels)) + num_classes

    def __repr__(self) -> str:
        return "Rejected()"

    @property
    def target_classes(self) -> Any:
        """The reject column, once for each input `(N,)`."""
        if self._target is None:
            # Not an AttributeError, which Foolbox would report as "unsupported criterion".
            raise ValueError(
                "this attack follows a gradient and needs to know the reject column: expected "
                "Rejected(labels, num_classes), got Rejected(). Or use criterion(x, y) of "
                "to_foolbox(model, goal=Goal.REJECTED)."
            )
        return self._target

    def __call__(self, perturbed: Any, outputs: Any) -> Any:  # noqa: ARG002
        """Which points `(N, ...)` succeed, by their columns."""
        columns, restore = ep.astensor_(outputs)
        return restore(columns.argmax(axis=-1) == columns.shape[-1] - 1)


class FoolboxModel(foolbox.models.PyTorchModel):  # type: ignore[misc, name-defined]
    """A selective classifier with k + 1 columns; made by `to_foolbox`."""

    def __init__(self, view: nn.Module, goal: Goal, device: torch.device | str) -> None:
        super().__init__(view, bounds=(0, 1), device=device)
        self.view, self.goal = view, goal

    def criterion(self, x: Tensor, y: Tensor) -> Any:
        """What counts as a success for images `(N, ...)` of true classes `(N,)`."""
        if self.goal is Goal.ACCEPTED_MISTAKE:
            return AcceptedMisclassification(y)
        return Rejected(y, num_classes=self(x[:1]).shape[1] - 1)


@dataclass(frozen=True)
class FoolboxAttack(GroupAttack):
    """Any Foolbox attack as a proposer of points for a selective classifier."""

    attack: Any  #: The attack, e.g. `foolbox.attacks.LInfFMNAttack()`.
    goal: Goal = field(default=Goal.ACCEPTED_MISTAKE, kw_only=True)  #: What it searches for.
    #: Boundary attacks need a first success to start from. If the attack has no `init_attack`, this
    #: many random images are tried. (Foolbox itself tries 1,000, each at the cost of a call of the
    #: selective classifier.)
    directions: int = field(default=100, kw_only=True)
    verbose: bool = field(default=False, kw_only=True)  #: Whether Foolbox may print and warn.

    def __post_init__(self) -> None:
        if not isinstance(self.attack, foolbox.attacks.base.Attack):
            raise TypeError(
                "attack: expected a Foolbox attack, e.g. foolbox.attacks.LinfPGD(), "
                f"got {type(self.attack).__name__}"
            )
        if self.goal not in (Goal.ACCEPTED_MISTAKE, Goal.REJECTED):
            raise ValueError(f"goal: expected ACCEPTED_MISTAKE or REJECTED, got {self.goal}")
        check_count(self.directions, "directions")

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"Foolbox {type(_innermost(self.attack)).__name__}"

    def _points(self, group: Group) -> Tensor:
        """The closest success among all points that the attack evaluated.

        Without a success it is the last point of the attack, or the image itself if the attack
        could not start. Minimum-norm attacks ignore eps; the attack has its own norm, and its
        points are returned unchanged. Foolbox draws per batch, so random starts depend on all
        images of it.
        """
        model, seed = group.model, batch_seed(group.seed, group.index)
        with guest(model, seed, logger="root", verbose=self.verbose):
            points = group.x.detach().clone().clamp_(0, 1)  # Foolbox refuses a pixel of 1 + 1e-7
            group = replace(group, x=points)
            selection = model.judge(points)
            reached = self.goal.reached(selection.predicted, selection.accepted, group.y)
            rows, starts = self._starts(group, (~reached).nonzero().squeeze(1))
            if len(rows):
                part = group.take(rows)
                target = self._target(part)
                criterion = target.criterion(part.x, part.y)
                closest = _Closest(target.view, self.goal, part)
                given = {**self._epsilons(group.eps), **starts}
                try:
                    found, _, _ = self.attack(target, part.x, criterion, **given)
                except ValueError as error:
                    raise ValueError(f"{self.name}, goal {self.goal.value!r}: {error}") from error
                points[rows] = closest.best_or(found.to(points.dtype))
        return points

    def _target(self, group: Group) -> Any:
        """What this attack should see, as a Foolbox model."""
        labels = group.y if self.goal is Goal.ACCEPTED_MISTAKE else None
        return to_foolbox(group.model, goal=self.goal, labels=labels, device=group.x.device)

    def _epsilons(self, eps: float) -> dict[str, float | None]:
        """The budget, for the kinds of attacks that take one."""
        if "epsilons" not in inspect.signature(type(self.attack).__call__).parameters:
            return {}
        kind = _innermost(self.attack)
        smallest = isinstance(kind, foolbox.attacks.base.MinimizationAttack)
        return {"epsilons": None if smallest else eps}

    def _starts(self, group: Group, rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The rows that can be attacked, and their first successes if the attack needs some.

        Foolbox stops a whole batch with an error if a single image has none.
        """
        kind = _innermost(self.attack)
        attacks = foolbox.attacks
        needless = isinstance(kind, attacks.fast_minimum_norm.FMNAttackLp) and not kind.init_attack
        if len(rows) == 0 or needless or not hasattr(kind, "init_attack"):
            return rows, {}
        first = kind.init_attack or attacks.LinearSearchBlendedUniformNoiseAttack(
            directions=self.directions, steps=50
        )
        part = group.take(rows)
        target = self._target(part)
        criterion = target.criterion(part.x, part.y)
        starts = first.run(target, part.x, criterion)
        good = criterion(starts, target(starts))
        return rows[good], {"starting_points": starts[good]}


def _innermost(attack: Any) -> Any:
    """The attack itself, where it is a repetition of one."""
    while hasattr(attack, "attack"):
        attack = attack.attack
    return attack


def attack_by_name(name: str) -> FoolboxAttack:
    """Make a Foolbox attack with its default settings, by the name of its class or its alias."""
    known: Registry[Any] = Registry("Foolbox attack")
    for key, kind in vars(foolbox.attacks).items():
        if isinstance(kind, type) and issubclass(kind, foolbox.attacks.base.Attack):
            known.register(key)(kind)
    kind = known[name]
    try:
        return FoolboxAttack(kind())
    except TypeError as error:
        raise ValueError(
            f"foolbox:{name} cannot be made without settings ({error}); run it from Python, with "
            "cpr_wrap.attacks.foolbox.FoolboxAttack"
        ) from error


class _Closest:
    """For each image the closest point at which the goal was reached, of all that a view saw.

    Many attacks return the last point they were at and not the best: in a thin zone of rejection a
    fixed step goes through and out again.
    """

    def __init__(self, view: nn.Module, goal: Goal, group: Group) -> None:
        self._goal, self._threat = goal, threat(group.norm)
        self._x, self._y, self._best = group.x, group.y, group.x
        self._distance = self._threat.distance(group.x, group.x) + torch.inf
        view.register_forward_hook(self._see)

    def _see(self, view: nn.Module, points: tuple[Tensor], columns: Tensor) -> None:  # noqa: ARG002
        x = points[0].detach()
        if x.shape != self._x.shape:
            return
        answer, last = columns.detach().argmax(dim=1), columns.shape[1] - 1
        reached = self._goal.reached(answer, answer != last, self._y)
        distance = self._threat.distance(x, self._x)
        closer = reached & (distance < self._distance)
        self._distance = torch.where(closer, distance, self._distance)
        self._best = torch.where(spread(closer, x), x, self._best)

    def best_or(self, found: Tensor) -> Tensor:
        """The closest success of each image, `found` where there is none `(N, ...)`."""
        return torch.where(spread(self._distance.isfinite(), found), self._best, found)
