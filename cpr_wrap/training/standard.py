"""Standard training: cross entropy on the images as they are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from cpr_wrap.training.method import Losses, Method, correct, cross_entropy, register_method


@register_method("standard")
@dataclass(frozen=True, kw_only=True)
class StandardTraining(Method):
    """Learns from unchanged images; the network it gives is not robust."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:  # noqa: ARG002
        """Cross entropy of each image."""
        outputs = network(x)
        return Losses(rows=cross_entropy(outputs, y), clean=correct(outputs, y))
