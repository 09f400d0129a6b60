"""Verified consistency: accept if bounds prove the prediction constant around the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpr_wrap._checks import check_positive
from cpr_wrap.bounds import Proof, Radii, proven_lead
from cpr_wrap.meter import Passes, tally
from cpr_wrap.objective import View, confident_mistake, low_confidence, low_score, scored_mistake
from cpr_wrap.rule import BySearch, CalibratedBy, Network, RejectionRule, register_rule


@register_rule("verified")
@dataclass(frozen=True, kw_only=True)
class Verified(RejectionRule):
    """Accepts when interval bounds prove the prediction constant within an Linf radius.

    The score is the proven margin: a lower bound, rounding included, on the margin of the predicted
    class over every other class, anywhere within the radius and inside [0, 1]. A margin of exactly
    0 is rejected.

    Attributes:
        radius: The radius within which the prediction must be proven constant, in pixel units.

    Example:
        >>> import torch
        >>> from cpr_wrap import SelectiveClassifier
        >>> model = SelectiveClassifier(torch.nn.Flatten().eval(), Verified(radius=0.1))
        >>> model.predict(torch.tensor([[[[0.9, 0.1]]], [[[0.4, 0.5]]]])).tolist()
        [0, -1]
    """

    inner = (low_score, low_confidence)
    outer = (confident_mistake, replace(scored_mistake, name="PROVEN-MISTAKE"))

    radius: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.radius, "radius")
        if self.threshold < 0:
            raise ValueError(
                f"threshold: a proven margin is above 0, so expected at least 0, "
                f"got {self.threshold:g}"
            )

    @property
    def norm(self) -> str:
        """Interval bounds are for Linf balls."""
        return "Linf"

    @property
    def reach(self) -> float:
        """The radius."""
        return self.radius

    @property
    def cost(self) -> Passes:
        """A forward for the prediction, one for the boxes' centers and one for their radii."""
        return Passes(3, 0)

    @property
    def calibrated_by(self) -> CalibratedBy:
        """By a search over the radius; bounds widen with it, so rejection increases."""
        return BySearch(setting="radius", most=1.0, advice="1 is all of [0, 1]")

    def score(self, view: View) -> Tensor:
        """Known only after `scored`, because the bounds need the network's layers."""
        return view.known_score

    def scored(self, view: View, model: Network) -> View:
        """The view with the proven margin, which attacks differentiate."""
        margin = proven_lead(model.base, tally(tally(view.z)), view.predicted, self.radius)
        nothing = torch.full_like(margin, -torch.finfo(margin.dtype).tiny)
        return replace(view, score=torch.where(margin == 0, nothing, margin))

    def certificate(self, proof: Proof) -> Radii:
        """Radii from two facts: boxes proven for different classes are disjoint, and boxes nest."""
        # A hair more than is needed: sums and differences of radii round.
        needed = tuple(proof.eps + sign * self.radius + 1e-9 for sign in (1, -1))
        around = proof.interval_radius(
            lambda leads: leads.amin(dim=1) - self.threshold,
            tried=(*needed, self.radius),
            margin=2.0,
        )
        right = proof.radius(tried=needed[1:], enough=needed[1])
        return Radii(mistake=right + self.radius, rejection=around - self.radius)

    def explain(self, view: View, name: Callable[[int], str] = str) -> list[str]:
        """Whether the prediction is proven, and by how much."""
        del name
        return [
            f"the prediction is {'' if margin > self.threshold else 'not '}proven within "
            f"{self.radius:g}, margin {margin:.3g}"
            for margin in view.known_score.detach().tolist()
        ]
