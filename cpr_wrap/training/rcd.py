"""RCD (Sheikholeslami et al. 2021): a reject class that attacked images may fall into."""

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


def abstain_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Loss of an answer that is neither right nor a rejection.

    Args:
        outputs: Class logits and the reject logit `(N, k + 1)`.
        y: True classes `(N,)`.

    Returns:
        The smaller of two cross entropies `(N,)`: of the true class among the k classes, and of
        the reject class among all but the true one.
    """
    right = cross_entropy(outputs[:, :-1], y)
    others = outputs.scatter(1, y[:, None], -torch.inf).logsumexp(dim=1)
    return torch.minimum(right, others - outputs[:, -1])


@register_method("rcd")
@dataclass(frozen=True, kw_only=True)
class RCD(AdversarialMethod):
    """Adversarial training of k + 1 classes with PGD in place of interval bounds.

    One half of the batch (every second image) has the abstention term and the clean term, the other
    half the adversarial term. Both attacks run in one batch.

    Attributes:
        abstain_weight: The paper's lambda_1.
        clean_weight: The paper's lambda_2.
    """

    rule_name = "rcd"
    extra_outputs = 1
    positive = ("eps", "abstain_weight", "clean_weight")

    abstain_weight: float = 1.0
    clean_weight: float = 1.0

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """lambda_1 * abstain(x') + lambda_2 * CE(x) of one half, CE(x') of the other."""
        # Sorted by role: the first `half` images may abstain.
        x, y, keys = (torch.cat([part[0::2], part[1::2]]) for part in (x, y, keys))
        half = (len(y) + 1) // 2

        def value(z: Tensor) -> Tensor:
            outputs = network(z)
            return torch.cat(
                [abstain_loss(outputs[:half], y[:half]), cross_entropy(outputs[half:], y[half:])]
            )

        x_adv = self.attack(network, value, x, keys)
        outputs = network(torch.cat([x_adv, x[:half]]))
        first, second, clean = outputs.split([half, len(y) - half, half])
        may_abstain = self.abstain_weight * abstain_loss(
            first, y[:half]
        ) + self.clean_weight * cross_entropy(clean, y[:half])
        return Losses(
            rows=torch.cat([may_abstain, cross_entropy(second, y[half:])]),
            clean=correct(clean, y[:half]),
            adversarial=correct(second, y[half:]),
        )
