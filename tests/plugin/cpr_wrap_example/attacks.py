"""An attack, and a budget that runs nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap import RejectionRule
from cpr_wrap.selective import SelectiveClassifier


@dataclass(frozen=True, kw_only=True)
class Fog:
    """Pulls every pixel toward gray.

    Attributes:
        grey: The grey.
    """

    grey: float = 0.5
    name = "fog"

    def perturb(
        self,
        model: SelectiveClassifier,
        x: Tensor,
        y: Tensor,
        eps: float,
        *,
        norm: str,
        seed: int,
        index: Tensor,
    ) -> Tensor:
        """Points `(N, ...)` for images `(N, ...)`."""
        del model, y, norm, seed, index
        return x + eps * torch.sign(self.grey - x)


@dataclass(frozen=True)
class _FogOnly:
    """Nothing but fog."""

    name: str = "fog-only"

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Fog, ...]:
        """One stage."""
        del rule, eps
        return (Fog(),)


FOG_ONLY = _FogOnly()
