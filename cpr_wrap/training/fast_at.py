"""Fast adversarial training (Wong et al. 2020): a single long step from a random start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cpr_wrap.training.method import (
    AdversarialMethod,
    Losses,
    correct,
    cross_entropy,
    register_method,
)


@register_method("fast-at")
@dataclass(frozen=True, kw_only=True)
class FastAT(AdversarialMethod):
    """Adversarial training at about twice the cost of standard training.

    The step is 1.25 eps long: from a uniform start that reaches most of the ball's surface. Much
    longer steps invite catastrophic overfitting, where the network learns to beat this one attack.
    """

    reach: ClassVar[float] = 1.25

    steps: int = 1

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Cross entropy of each image after one step."""
        x_adv = self.attack(network, lambda z: cross_entropy(network(z), y), x, keys)
        outputs = network(x_adv)
        return Losses(rows=cross_entropy(outputs, y), adversarial=correct(outputs, y))
