"""Rectified rejection (ATRR): confidence times an auxiliary head's estimate of being right."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from cpr_wrap.objective import Targets, View, doubt, log_prob, objective
from cpr_wrap.rule import RejectionRule, register_rule


@objective("ATRRIA")
def low_rectified_confidence(view: View) -> tuple[Tensor, ...]:
    """Make A(z) small and the network unsure."""
    return (-logsigmoid(view.outputs[:, -1]), doubt(view.logits))


@objective("ATRROA", targets=Targets.OTHERS)
def rectified_mistake(view: View) -> tuple[Tensor, ...]:
    """Make A(z) large and the network sure of the target class."""
    return (log_prob(view.logits, view.target), logsigmoid(view.outputs[:, -1]))


@register_rule("atrr")
@dataclass(frozen=True, kw_only=True)
class RectifiedConfidence(RejectionRule):
    """Accepts when A(x) · h_max(x) reaches the threshold; the last output is the logit of A.

    Example:
        >>> import torch
        >>> from cpr_wrap import SelectiveClassifier
        >>> network = torch.nn.Flatten().eval()  # two class logits and the logit of A
        >>> model = SelectiveClassifier(network, RectifiedConfidence(threshold=0.5))
        >>> model.predict(torch.tensor([[[[1.0, 0.0, 1.0]]], [[[1.0, 0.0, 0.0]]]])).tolist()
        [0, -1]
    """

    inner = (low_rectified_confidence,)
    outer = (rectified_mistake,)
    extra_outputs = 1

    @property
    def accepts_everything(self) -> bool:
        """No product of probabilities is below 0."""
        return self.threshold <= 0

    def score(self, view: View) -> Tensor:
        """Rectified confidence, in [0, 1]."""
        return view.logits.softmax(dim=1).amax(dim=1) * view.outputs[:, -1].sigmoid()
