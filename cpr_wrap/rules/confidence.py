"""Confidence rejection (AT+CR, TRADES+CR, CCAT): reject if the top probability is low."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap.bounds import Proof, Radii
from cpr_wrap.objective import View, confident_mistake, low_confidence, objective
from cpr_wrap.rule import RejectionRule, register_rule


@objective("PGD-backtracking")
def other_confidence(view: View) -> tuple[Tensor, ...]:
    """Make the largest wrong class likely, whichever it is: CCAT's own attack."""
    wrong = view.logits.log_softmax(dim=1).scatter(1, view.label[:, None], -torch.inf)
    return (wrong.amax(dim=1),)


@register_rule("confidence")
@dataclass(frozen=True, kw_only=True)
class Confidence(RejectionRule):
    """Accepts when the largest class probability reaches the threshold.

    Example:
        >>> import torch
        >>> from cpr_wrap import SelectiveClassifier
        >>> network = torch.nn.Flatten().eval()  # two pixels are the two logits
        >>> model = SelectiveClassifier(network, Confidence(threshold=0.6))
        >>> model.predict(torch.tensor([[[[1.0, 0.0]]], [[[0.5, 0.4]]]])).tolist()
        [0, -1]
    """

    inner = (low_confidence,)
    outer = (confident_mistake,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold > 1:
            text = "no probability is above 1, so that every image is rejected"
            warnings.warn(f"threshold {self.threshold:g}: {text}", stacklevel=3)

    @property
    def accepts_everything(self) -> bool:
        """No probability is below 0."""
        return self.threshold <= 0

    def score(self, view: View) -> Tensor:
        """Largest softmax probability."""
        return view.logits.softmax(dim=1).amax(dim=1)

    def certificate(self, proof: Proof) -> Radii:
        """Radii from bounds on the margin of the true class over each other class.

        A class that trails by d has a probability of at most 1 / (1 + exp(d)). The true class has
        at least 1 / (1 + sum of exp(-lead)).
        """
        # Softmax in floating point: each of k + 3 operations rounds.
        room = (proof.num_classes + 8) * torch.finfo(proof.x.dtype).eps
        high, low = self.threshold + room, self.threshold - room
        trails = max(0.0, -math.log(1 / low - 1)) if 0 < low < 1 else 0.0
        mistake = proof.radius(lambda leads: leads.amin(dim=1) + trails)
        rejection = proof.radius(lambda leads: 1 / (-leads).exp().sum(dim=1).add(1) - high)
        return Radii(mistake, rejection)


@register_rule("none")
@dataclass(frozen=True, kw_only=True)
class AcceptAll(RejectionRule):
    """Never rejects: the plain classifier, for comparison.

    Example:
        >>> import torch
        >>> from cpr_wrap import SelectiveClassifier
        >>> model = SelectiveClassifier(torch.nn.Flatten().eval(), AcceptAll())
        >>> model.predict(torch.tensor([[[[1.0, 0.0]]], [[[0.5, 0.4]]]])).tolist()
        [0, 0]
    """

    outer = (confident_mistake,)
    can_reject = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold > 0:
            raise ValueError(
                f"threshold: rule {self.name!r} never rejects, so it takes none, got "
                f"{self.threshold:g}"
            )

    def score(self, view: View) -> Tensor:
        """Zero, which is the threshold."""
        return view.outputs.new_zeros(len(view.outputs))

    def certificate(self, proof: Proof) -> Radii:
        """No mistake within the network's own radius, and never a rejection."""
        radius = proof.radius()
        return Radii(radius, torch.full_like(radius, torch.inf))
