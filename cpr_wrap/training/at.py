"""Adversarial training (Madry et al. 2018): learn from the worst points that PGD finds."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from cpr_wrap.training.method import (
    AdversarialMethod,
    Losses,
    correct,
    cross_entropy,
    register_method,
)


@register_method("at")
@dataclass(frozen=True, kw_only=True)
class AT(AdversarialMethod):
    """Cross entropy where PGD made it large; clean images are not shown at all."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Cross entropy of each attacked image."""
        x_adv = self.attack(network, lambda z: cross_entropy(network(z), y), x, keys)
        outputs = network(x_adv)
        return Losses(rows=cross_entropy(outputs, y), adversarial=correct(outputs, y))
