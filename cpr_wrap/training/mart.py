"""MART (Wang et al. 2020): more weight on images that are misclassified when clean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpr_wrap.training.method import (
    AdversarialMethod,
    Losses,
    correct,
    cross_entropy,
    register_method,
)
from cpr_wrap.training.trades import kl


def boosted_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """-log p_y - log(1 - largest other probability), `(N, k)` and `(N,)` to `(N,)`."""
    rival = outputs.detach().scatter(1, y[:, None], -torch.inf).argmax(dim=1, keepdim=True)
    # 1 - p_rival is the share of all the others, which stays exact when p_rival is close to 1.
    others = outputs.scatter(1, rival, -torch.inf).logsumexp(dim=1)
    return cross_entropy(outputs, y) + outputs.logsumexp(dim=1) - others


@register_method("mart")
@dataclass(frozen=True, kw_only=True)
class MART(AdversarialMethod):
    """Boosted cross entropy on attacked images, plus a divergence weighted by 1 - h_y(x).

    Attributes:
        beta: Weight of the divergence.
    """

    positive = ("eps", "beta")

    beta: float = 5.0

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """BCE(x') + beta * KL(h(x) || h(x')) * (1 - h_y(x)), gradients through all of it."""
        x_adv = self.attack(network, lambda z: cross_entropy(network(z), y), x, keys)
        outputs, attacked = network(x), network(x_adv)
        doubt = -torch.expm1(-cross_entropy(outputs, y))
        return Losses(
            rows=boosted_cross_entropy(attacked, y) + self.beta * kl(outputs, attacked) * doubt,
            clean=correct(outputs, y),
            adversarial=correct(attacked, y),
        )
