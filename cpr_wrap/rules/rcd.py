"""Robust classification with detection (RCD): one more class that means "I don't know"."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap.objective import Targets, View, log_prob, objective
from cpr_wrap.selective import RejectionRule, SelectiveClassifier, register_rule


@objective("RCDIA")
def reject_class(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make the reject class likely."""
    last = torch.full_like(view.predicted, view.num_classes)
    return (log_prob(view.outputs, last),)


@objective("RCDOA", targets=Targets.OTHERS)
def sure_of_target(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make the target class likely among all k + 1."""
    return (log_prob(view.outputs, target),)


@objective("RCDPM", targets=Targets.OTHERS)
def lead_of_target(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Lift the target's logit above every other one, the reject class's included."""
    own = view.outputs.gather(1, target[:, None]).squeeze(1)
    return (own - view.outputs.scatter(1, target[:, None], -torch.inf).amax(dim=1),)


@register_rule("rcd")
@dataclass(frozen=True, kw_only=True)
class RejectClass(RejectionRule):
    """Accepts when the largest class logit leads the reject logit by at least the threshold (0)."""

    inner = (reject_class,)
    outer = (sure_of_target,)
    extra_outer = (lead_of_target,)
    extra_outputs = 1

    def score(self, model: SelectiveClassifier, x: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """Largest class logit minus the reject logit."""
        return outputs[:, :-1].amax(dim=1) - outputs[:, -1]
