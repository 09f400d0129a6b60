"""The paper's two theorems, evaluated on measured distances to the decision boundary.

Both are about the ideal rule, which rejects exactly the inputs within `radius` of the base
network's decision boundary; delta is radius / eps. The distances of an evaluation are upper bounds,
because attacks find them, and T only searches for a disagreement. A measured error above the bound
of Theorem 1 therefore means that some distances are too large or that T misses disagreements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cpr_wrap._checks import check_eps, check_positive
from cpr_wrap.metrics.losses import LossLike, Numbers, fractions, image_losses, like
from cpr_wrap.metrics.records import REJECTED, Records, inward, rounding


def ideal_rejected_radius(distance: Tensor, radius: float) -> Tensor:
    """Where the ideal rule begins to reject: max(0, distance - radius).

    If the measured smallest rejected radius is far above it, the attack or T is weak there.

    Args:
        distance: Distances to the base network's boundary, any shape, infinite ones included.
        radius: The rule's radius.

    Returns:
        Radii in the same shape; above eps, the adversary cannot make the rule reject.
    """
    return torch.maximum(distance - radius, torch.zeros_like(distance))


@dataclass(frozen=True, kw_only=True, eq=False)
class Theorem:
    """What a theorem says about one evaluation, if it may be applied.

    Both arrive at the base network's robust error at the budget max((alpha + delta) · eps,
    (1 - delta) · eps): as a bound, or, under more conditions, as the error itself.
    """

    why: str  #: The condition that fails; empty if the theorem applies.
    unchecked: tuple[str, ...] = ()  #: Conditions that are assumed, because they were not measured.
    distance: Tensor  #: Distances to the base network's boundary `(N,)`, less rounding.
    base_wrong: Tensor  #: Whether the base network misclassifies the clean input `(N,)`.
    eps: float  #: Adversarial budget.
    radius: float  #: The rule's radius.

    @property
    def applicable(self) -> bool:
        """Whether the theorem's conditions hold."""
        return not self.why

    @property
    def delta(self) -> float:
        """The rule's radius as a fraction of eps."""
        return self.radius / self.eps

    def error_at(self, alpha: Numbers) -> Numbers:
        """The theorem's robust error with rejection at alphas in [0, 1], of any shape."""
        self._require()
        budget = (fractions(alpha) * self.eps + self.radius).clamp_min(self.eps - self.radius)
        errors = self.base_wrong | (self.distance <= budget[..., None])
        return like(alpha, errors.double().mean(dim=-1))

    def total_robust_loss(self, loss: LossLike) -> float:
        """The theorem's total robust loss, by its argument for each image.

        A mistake requires that the base network is wrong, or a boundary within eps - radius. A
        rejection at distance r requires a boundary within r + radius, and the loss does not
        increase.
        """
        self._require()
        mistaken = self.base_wrong | (self.distance <= self.eps - self.radius)
        rejected = ideal_rejected_radius(self.distance, self.radius)
        rejected = torch.where(rejected <= self.eps, rejected, torch.inf)
        return float(image_losses(mistaken, rejected, loss, self.eps).mean())

    def _require(self) -> None:
        if not self.applicable:
            raise ValueError(f"{type(self).__name__} does not apply here: {self.why}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Theorem1Bound(Theorem):
    """Upper bound: s(alpha) is at most the base network's robust error at that budget.

    The proof holds for any number of classes. The total robust loss is an upper bound, too.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class Theorem2Curve(Theorem):
    """Closed form of the ideal rule's curve and total robust loss, from the distances alone.

    It holds for delta up to 1/2 and a base network without clean errors, if the regions behind the
    boundary are at least `radius` deep, so that a mistake fits into them. Then there are mistakes
    up to eps - radius, and rejections from there up to eps + radius.
    """


def theorem1_bound(
    distance: Tensor, base_wrong: Tensor, *, eps: float, radius: float
) -> Theorem1Bound:
    """Upper bound on the ideal rule's error; applicable for a radius of at most eps.

    Args:
        distance: Distances to the base network's boundary `(N,)`, infinite where none was found.
        base_wrong: Whether the base network misclassifies the clean input `(N,)`, bool.
        eps: Adversarial budget.
        radius: The rule's radius.

    Example:
        >>> import torch
        >>> distance = torch.tensor([0.1, 0.25, 0.5], dtype=torch.float64)
        >>> bound = theorem1_bound(distance, torch.tensor([False] * 3), eps=0.3, radius=0.1)
        >>> round(float(bound.error_at(torch.tensor(0.0))), 3)
        0.333
    """
    measured = _checked(distance, base_wrong, eps, radius)
    why = f"expected a radius of at most eps={eps:g}, got {radius:g}" if radius > eps else ""
    return Theorem1Bound(why=why, **measured)


def theorem2_curve(
    distance: Tensor,
    base_wrong: Tensor,
    *,
    eps: float,
    radius: float,
    depth: Tensor | None = None,
) -> Theorem2Curve:
    """The ideal rule's curve in closed form, or the reason why it does not apply.

    Args:
        distance: Distances to the base network's boundary `(N,)`, infinite where none was found.
        base_wrong: Whether the base network misclassifies the clean input `(N,)`, bool.
        eps: Adversarial budget.
        radius: The rule's radius.
        depth: How deep behind the boundary a mistake within eps was found `(N,)`, where measured.

    Example:
        >>> import torch
        >>> distance = torch.tensor([0.1, 0.25, 0.5], dtype=torch.float64)
        >>> ideal = theorem2_curve(distance, torch.tensor([False] * 3), eps=0.3, radius=0.1)
        >>> ideal.applicable, round(float(ideal.error_at(torch.tensor(1.0))), 3)
        (True, 0.667)
    """
    measured = _checked(distance, base_wrong, eps, radius)
    if depth is not None and depth.shape != distance.shape:
        raise ValueError(f"depth: expected {len(distance)} entries, got shape {tuple(depth.shape)}")
    why = ""
    if radius > eps / 2:
        why = f"delta = radius / eps is {radius / eps:g}, above 1/2"
    elif bool(base_wrong.any()):
        why = f"the base network is wrong on {int(base_wrong.sum())} clean inputs"
    elif depth is not None:
        near = measured["distance"] <= eps - radius
        shallow = near & (depth.cpu() + rounding(eps) < radius)
        if bool(shallow.any()):
            why = f"{int(shallow.sum())} images have only regions shallower than radius within eps"
    unchecked = () if depth is not None else ("regions at least radius deep",)
    return Theorem2Curve(why=why, unchecked=unchecked, **measured)


def theorems_of(records: Records, radius: float) -> tuple[Theorem1Bound, Theorem2Curve]:
    """Both theorems for a rule with this radius, from an evaluation's records.

    If the base network's own clean predictions were not recorded, an image whose clean input is
    rejected counts as correctly classified by the base network. It is within `radius` of the
    boundary, so the bound of Theorem 1 counts it anyway; for Theorem 2 it is listed as unchecked.
    """
    if records.boundary_distance is None:
        raise ValueError("expected records with boundary_distance, got records without")
    if records.base_label is None:
        answer = records.clean_label
        wrong = (answer != records.label) & (answer != REJECTED)
    else:
        wrong = records.base_label != records.label
    bound = theorem1_bound(records.boundary_distance, wrong, eps=records.eps, radius=radius)
    closed = theorem2_curve(
        records.boundary_distance, wrong, eps=records.eps, radius=radius, depth=records.depth
    )
    if records.base_label is None and bool((records.clean_label == REJECTED).any()):
        assumed = "a base network that is right on the clean inputs rejected"
        closed = replace(closed, unchecked=(*closed.unchecked, assumed))
    return bound, closed


def _checked(distance: Tensor, base_wrong: Tensor, eps: float, radius: float) -> dict[str, Any]:
    """What a theorem is about, on the CPU, distances less rounding."""
    check_positive(eps, "eps")
    check_eps(radius, "radius")
    if distance.dim() != 1 or len(distance) == 0 or distance.shape != base_wrong.shape:
        raise ValueError(
            "expected distances and base_wrong of shape (N,) with at least one image, "
            f"got shapes {tuple(distance.shape)} and {tuple(base_wrong.shape)}"
        )
    if base_wrong.dtype != torch.bool:
        raise TypeError(f"base_wrong: expected torch.bool, got {base_wrong.dtype}")
    if not bool((distance >= 0).all()):
        raise ValueError("distance: expected distances of at least 0, not NaN")
    inner = inward(distance.detach().cpu().double(), eps)
    return {"distance": inner, "base_wrong": base_wrong.cpu(), "eps": eps, "radius": radius}
