"""Standard training, and adversarial training in its two plain forms.

Adversarial training (Madry et al. 2018) learns from the worst points that PGD finds; fast
adversarial training (Wong et al. 2020) from those of a single long step.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """Cross entropy on clean images; the trained network is not robust."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:  # noqa: ARG002
        """Cross entropy of each image."""
        outputs = network(x)
        return Losses(rows=cross_entropy(outputs, y), clean=correct(outputs, y))


@register_method("at")
@dataclass(frozen=True, kw_only=True)
class AT(AdversarialMethod):
    """Cross entropy at the points that PGD finds; clean images are not used."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Cross entropy of each attacked image."""
        x_adv = self.attack(network, lambda z: cross_entropy(network(z), y), x, keys)
        outputs = network(x_adv)
        return Losses(rows=cross_entropy(outputs, y), adversarial=correct(outputs, y))


@register_method("fast-at")
@dataclass(frozen=True, kw_only=True)
class FastAT(AT):
    """Adversarial training at about twice the cost of standard training.

    The step size is 1.25 eps, which reaches most of the ball's surface from a uniform start. Much
    longer steps can cause catastrophic overfitting: the network learns to resist this one attack
    only.
    """

    reach = 1.25

    steps: int = 1
