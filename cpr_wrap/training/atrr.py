"""ATRR (Pang et al. 2022): a second head learns how far the confidence can be believed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from cpr_wrap.training.method import (
    AdversarialMethod,
    Losses,
    correct,
    cross_entropy,
    register_method,
)


def rectification_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Binary cross entropy between the rectified confidence c * A and the true probability.

    Args:
        outputs: Class logits and the auxiliary logit `(N, k + 1)`; A is the latter's sigmoid.
        y: True classes `(N,)`.

    Returns:
        Losses `(N,)`. The true probability is a constant in it; so is the confidence c where the
        prediction is right, where only A is to learn.
    """
    logits, auxiliary = outputs[:, :-1], outputs[:, -1]
    truth = logits.detach().softmax(dim=1).gather(1, y[:, None]).squeeze(1)
    predicted = logits.detach().argmax(dim=1)
    logits = torch.where((predicted == y)[:, None], logits.detach(), logits)
    # In logarithms all the way, where the published code floors log(0) at -100:
    # 1 - c * A = (1 - c) + c * (1 - A).
    total = logits.logsumexp(dim=1)
    log_c = logits.gather(1, predicted[:, None]).squeeze(1) - total
    log_doubt = logits.scatter(1, predicted[:, None], -torch.inf).logsumexp(dim=1) - total
    log_believed = log_c + logsigmoid(auxiliary)
    log_refused = torch.logaddexp(log_doubt, log_c + logsigmoid(-auxiliary))
    return -(truth * log_believed + (1 - truth) * log_refused)


@register_method("atrr")
@dataclass(frozen=True, kw_only=True)
class ATRR(AdversarialMethod):
    """Adversarial training of the classes, and of the auxiliary head on the same points.

    Attributes:
        rectify_weight: The paper's lambda.
    """

    rule_name = "atrr"
    extra_outputs = 1
    auxiliary = True
    positive = ("eps", "rectify_weight")

    rectify_weight: float = 1.0

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """CE(x') + lambda * BCE(c(x') * A(x'), h_y(x')); the attack sees the class head alone."""
        x_adv = self.attack(network, lambda z: cross_entropy(network(z)[:, :-1], y), x, keys)
        outputs = network(x_adv)
        logits = outputs[:, :-1]
        return Losses(
            rows=cross_entropy(logits, y) + self.rectify_weight * rectification_loss(outputs, y),
            adversarial=correct(logits, y),
        )
