"""Interval bound training (Gowal et al. 2018): learn from the worst outputs that bounds allow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap.bounds import leads
from cpr_wrap.training.method import (
    AdversarialMethod,
    Losses,
    correct,
    cross_entropy,
    in_eval_mode,
    register_method,
)


@register_method("ibp")
@dataclass(frozen=True, kw_only=True)
class IBP(AdversarialMethod):
    """Cross entropy on the image and, by interval bounds, on all points around it.

    Attributes:
        weight: Share of the bound in the loss; it grows with eps during the warm-up.
        box: Share of eps that the bounds cover. With less than 1, PGD first looks for the worst
            point within the rest of eps, and the bounds cover a small box around it (Müller et al.
            2023).
    """

    rule_name = "verified"
    positive = ("eps", "weight", "box")

    eps: float = 0.3
    weight: float = 0.5
    box: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("weight", "box"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}: expected a share in (0, 1], got {getattr(self, name)}")
        if self.norm != "Linf":
            raise ValueError(f"norm: interval bounds are for Linf, got {self.norm!r}")

    def scaled(self, factor: float) -> Self:
        """The same method with eps, step size and the bound's weight times `factor`."""
        return replace(super().scaled(factor), weight=self.weight * factor)

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """(1 - weight) * CE(x) + weight * CE(worst outputs within the box)."""
        center = x
        if self.box < 1:
            nearer = super().scaled(1 - self.box)
            center = nearer.attack(network, lambda z: cross_entropy(network(z), y), x, keys)
        outputs = network(x)
        with in_eval_mode(network):  # bounds know neither dropout nor a batch's own statistics
            bound = leads(network, center, y, self.box * self.eps, margin=0.0)
        proven = bound.detach().amin(dim=1) > 0
        # Where y leads class j by at least b_j, the worst outputs have 0 for y and -b_j for j.
        worst = cross_entropy(-bound.scatter(1, y[:, None], 0.0), y)
        return Losses(
            rows=(1 - self.weight) * cross_entropy(outputs, y) + self.weight * worst,
            clean=correct(outputs, y),
            adversarial=proven,
        )
