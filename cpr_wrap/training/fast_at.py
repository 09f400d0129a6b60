"""Fast adversarial training (Wong et al. 2020): a single long step from a random start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cpr_wrap.training.at import AT
from cpr_wrap.training.method import register_method


@register_method("fast-at")
@dataclass(frozen=True, kw_only=True)
class FastAT(AT):
    """Adversarial training at about twice the cost of standard training.

    The step is 1.25 eps long: from a uniform start that reaches most of the ball's surface. Much
    longer steps invite catastrophic overfitting, where the network learns to beat this one attack.
    """

    reach: ClassVar[float] = 1.25

    steps: int = 1
