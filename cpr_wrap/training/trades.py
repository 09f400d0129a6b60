"""TRADES (Zhang et al. 2019): be right on the image, and constant in the ball around it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpr_wrap.training.method import (
    AdversarialMethod,
    Losses,
    Start,
    attacking,
    correct,
    cross_entropy,
    register_method,
)


def kl(outputs: Tensor, others: Tensor) -> Tensor:
    """KL(softmax(outputs) || softmax(others)) of each row, `(N, k)` twice to `(N,)`."""
    log_p, log_q = outputs.log_softmax(dim=1), others.log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)


@register_method("trades")
@dataclass(frozen=True, kw_only=True)
class TRADES(AdversarialMethod):
    """Cross entropy on the image plus `beta` times the divergence to the worst point around it.

    Attributes:
        beta: Weight of the divergence; larger trades clean accuracy for robustness.
    """

    positive = ("eps", "beta")

    beta: float = 6.0
    # At the image itself the divergence is flat, so the attack starts a hair's breadth away.
    start: Start = "gaussian"

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """CE(x) + beta * KL(h(x) || h(x')), with gradients through both arguments of KL."""
        with attacking(network), torch.no_grad():
            reference = network(x)
        x_adv = self.attack(network, lambda z: kl(reference, network(z)), x, keys)
        outputs, attacked = network(x), network(x_adv)
        return Losses(
            rows=cross_entropy(outputs, y) + self.beta * kl(outputs, attacked),
            clean=correct(outputs, y),
            adversarial=correct(attacked, y),
        )
