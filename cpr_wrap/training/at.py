"""Standard training, and adversarial training in its two plain forms.

Adversarial training (Madry et al. 2018) learns from the worst points that PGD finds; fast
adversarial training (Wong et al. 2020) from those of a single long step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cpr_wrap.training.method import (
    AdversarialMethod,
    Losses,
    Method,
    correct,
    cross_entropy,
    register_method,
)


@register_method("standard")
@dataclass(frozen=True, kw_only=True)
class StandardTraining(Method):
    """Learns from unchanged images; the network it gives is not robust."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:  # noqa: ARG002
        """Cross entropy of each image."""
        outputs = network(x)
        return Losses(rows=cross_entropy(outputs, y), clean=correct(outputs, y))


@register_method("at")
@dataclass(frozen=True, kw_only=True)
class AT(AdversarialMethod):
    """Cross entropy where PGD made it large; clean images are not shown at all."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Cross entropy of each attacked image."""
        x_adv = self.attack(network, lambda z: cross_entropy(network(z), y), x, keys)
        outputs = network(x_adv)
        return Losses(rows=cross_entropy(outputs, y), adversarial=correct(outputs, y))


@register_method("fast-at")
@dataclass(frozen=True, kw_only=True)
class FastAT(AT):
    """Adversarial training at about twice the cost of standard training.

    The step is 1.25 eps long: from a uniform start that reaches most of the ball's surface. Much
    longer steps invite catastrophic overfitting, where the network learns to beat this one attack.
    """

    reach: ClassVar[float] = 1.25

    steps: int = 1
