"""Confidence rejection (AT+CR, TRADES+CR, CCAT): stay silent when the top probability is low."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap.objective import (
    View,
    confident_mistake,
    lost_margin,
    low_confidence,
    objective,
    probability_margin,
)
from cpr_wrap.selective import RejectionRule, SelectiveClassifier, register_rule


@objective("PGD-backtracking")
def other_confidence(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make the largest wrong class likely, whichever it is: CCAT's own attack."""
    wrong = view.logits.log_softmax(dim=1).scatter(1, y[:, None], -torch.inf)
    return (wrong.amax(dim=1),)


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
