"""Confidence rejection (AT+CR, TRADES+CR, CCAT): stay silent when the top probability is low."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cpr_wrap.objective import (
    confident_mistake,
    lost_margin,
    low_confidence,
    probability_margin,
)
from cpr_wrap.selective import RejectionRule, SelectiveClassifier, register_rule


@register_rule("confidence")
@dataclass(frozen=True, kw_only=True)
class Confidence(RejectionRule):
    """Accepts when the largest class probability reaches the threshold."""

    inner = (low_confidence,)
    outer = (confident_mistake,)
    extra_outer = (probability_margin,)

    def score(self, model: SelectiveClassifier, x: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """Largest softmax probability."""
        return outputs.softmax(dim=1).amax(dim=1)


@register_rule("none")
@dataclass(frozen=True, kw_only=True)
class AcceptAll(RejectionRule):
    """Never rejects: the plain classifier, for comparison."""

    outer = (confident_mistake,)
    extra_outer = (lost_margin,)
    can_reject = False

    def score(self, model: SelectiveClassifier, x: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """Zero, which is the threshold."""
        return outputs.new_zeros(len(outputs))
