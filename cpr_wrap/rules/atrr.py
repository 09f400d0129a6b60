"""Rectified rejection (ATRR): confidence times an auxiliary head's estimate of being right."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from cpr_wrap.objective import Targets, View, doubt, log_prob, objective, probability_margin
from cpr_wrap.selective import RejectionRule, SelectiveClassifier, register_rule


@objective("ATRRIA")
def low_rectified_confidence(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make A(z) small and the network unsure."""
    return (-logsigmoid(view.outputs[:, -1]), doubt(view.logits))


@objective("ATRROA", targets=Targets.OTHERS)
def rectified_mistake(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make A(z) large and the network sure of the target class."""
    return (log_prob(view.logits, target), logsigmoid(view.outputs[:, -1]))


@register_rule("atrr")
@dataclass(frozen=True, kw_only=True)
class RectifiedConfidence(RejectionRule):
    """Accepts when A(x) · h_max(x) reaches the threshold; the last output is the logit of A."""

    inner = (low_rectified_confidence,)
    outer = (rectified_mistake,)
    extra_outer = (probability_margin,)
    extra_outputs = 1

    def score(self, model: SelectiveClassifier, x: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """Rectified confidence, in [0, 1]."""
        return outputs[:, :-1].softmax(dim=1).amax(dim=1) * outputs[:, -1].sigmoid()
