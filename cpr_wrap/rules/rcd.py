"""Robust classification with detection (RCD): one more class that means "I don't know"."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap.objective import Targets, View, log_prob, objective
from cpr_wrap.rule import CalibratedBy, RejectionRule, Unchanged, register_rule


@objective("RCDIA")
def reject_class(view: View) -> tuple[Tensor, ...]:
    """Make the reject class likely."""
    last = torch.full_like(view.predicted, view.num_classes)
    return (log_prob(view.outputs, last),)


@objective("RCDOA", targets=Targets.OTHERS)
def sure_of_target(view: View) -> tuple[Tensor, ...]:
    """Make the target class likely among all k + 1."""
    return (log_prob(view.outputs, view.target),)


@register_rule("rcd")
@dataclass(frozen=True, kw_only=True)
class RejectClass(RejectionRule):
    """Accepts if the largest class logit is at least the reject logit plus the threshold (0).

    Example:
        >>> import torch
        >>> from cpr_wrap import SelectiveClassifier
        >>> network = torch.nn.Flatten().eval()  # two class logits and the reject logit
        >>> model = SelectiveClassifier(network, RejectClass())
        >>> model.predict(torch.tensor([[[[0.9, 0.1, 0.5]]], [[[0.3, 0.2, 0.5]]]])).tolist()
        [0, -1]
    """

    inner = (reject_class,)
    outer = (sure_of_target,)
    extra_outputs = 1

    @property
    def calibrated_by(self) -> CalibratedBy:
        """A reject class wins or loses, as in the paper."""
        return Unchanged(why=f"the reject class decides, the threshold stays at {self.threshold:g}")

    def score(self, view: View) -> Tensor:
        """Largest class logit minus the reject logit."""
        return view.logits.amax(dim=1) - view.outputs[:, -1]
