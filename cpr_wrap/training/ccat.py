"""CCAT (Stutz et al. 2020): low confidence on attacked images, lower for larger perturbations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpr_wrap.geometry import threat
from cpr_wrap.solver import PGD, Keep
from cpr_wrap.training.method import AdversarialMethod, Losses, Start, correct, register_method


def wrong_confidence(outputs: Tensor, y: Tensor) -> Tensor:
    """Largest probability of a wrong class, `(N, k)` and `(N,)` to `(N,)`."""
    return outputs.softmax(dim=1).scatter(1, y[:, None], -1.0).amax(dim=1)


@register_method("ccat")
@dataclass(frozen=True, kw_only=True)
class CCAT(AdversarialMethod):
    """One half of each batch is clean; the other half is attacked and gets softer labels.

    Attributes:
        rho: How fast the label becomes uniform with the size of the perturbation.
        momentum: Momentum of the attack.
        backtrack: Factor by which the step size is divided after a step that lowers the objective.
    """

    rule_name = "confidence"
    positive = ("eps", "rho")
    reach = 2 / 3  # 40 steps of 0.005 at eps = 0.3

    steps: int = 40
    start: Start = "ray-or-zero"
    # As published. Backtracking takes no step that lowers the value, so the last point is the best.
    keep: Keep = "best"
    rho: float = 10.0
    momentum: float = 0.9
    backtrack: float = 1.5

    @property
    def pgd(self) -> PGD:
        """PGD with momentum and backtracking."""
        return replace(super().pgd, momentum=self.momentum, backtrack=self.backtrack)

    def soft_labels(self, x: Tensor, x_adv: Tensor, y: Tensor, num_classes: int) -> Tensor:
        """Mix of the true label and the uniform one: nothing but the latter at distance eps.

        Args:
            x: Images `(N, ...)`.
            x_adv: Attacked images `(N, ...)`.
            y: True classes `(N,)`.
            num_classes: k.

        Returns:
            Label distributions `(N, k)`.
        """
        length = threat(self.norm).distance(x_adv, x).to(x.dtype)
        trust = (1 - (length / self.eps).clamp(max=1)) ** self.rho
        one_hot = F.one_hot(y, num_classes).to(x.dtype)
        return trust[:, None] * one_hot + (1 - trust[:, None]) / num_classes

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Cross entropy of every second image, and of the others, attacked, to softer labels."""
        clean, attacked = slice(0, None, 2), slice(1, None, 2)
        y_attacked = y[attacked]
        x_adv = self.attack(
            network,
            lambda z: wrong_confidence(network(z), y_attacked),
            x[attacked],
            keys[attacked],
        )
        outputs = network(torch.cat([x[clean], x_adv]))
        num_classes = outputs.shape[1]
        labels = torch.cat(
            [
                F.one_hot(y[clean], num_classes).to(outputs.dtype),
                self.soft_labels(x[attacked], x_adv, y_attacked, num_classes).to(outputs.dtype),
            ]
        )
        half = len(y[clean])
        return Losses(
            rows=-(labels * outputs.log_softmax(dim=1)).sum(dim=1),
            clean=correct(outputs[:half], y[clean]),
            adversarial=correct(outputs[half:], y_attacked),
        )
