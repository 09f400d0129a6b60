"""What the loop puts around a network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cpr_wrap.training.method import Losses, Method


class MethodLoss(nn.Module):
    """A method's loss as the forward of a module, which is what DDP hooks on to.

    The attack runs inside, on the bare network: DDP sees one forward and one backward a step.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, method: Method, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Losses of a batch, see `Method.loss`."""
        return method.loss(self.network, x, y, keys)


class Autocast(nn.Module):
    """A network that computes in bfloat16 and answers in float32.

    bfloat16 has float32's range, so that gradients need no scaling, not even the attack's.
    """

    def __init__(self, network: nn.Module, device_type: str) -> None:
        super().__init__()
        self.network = network
        self.device_type = device_type

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `(N, k)` in float32."""
        with torch.autocast(self.device_type, dtype=torch.bfloat16):
            outputs: Tensor = self.network(x)
        return outputs.float()
