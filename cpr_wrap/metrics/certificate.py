"""What is proven about images: the lower bound under a robustness curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpr_wrap._checks import check_positive
from cpr_wrap.metrics.losses import (
    PAPER_ALPHAS,
    PAPER_LOSSES,
    LossLike,
    Numbers,
    fractions,
    image_losses,
    like,
)
from cpr_wrap.metrics.records import Records, check_column, distances, plain_rows

COLUMNS = ("radius", "mistake_radius", "rejection_radius")


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """Proven radii, one per image, float64 on the CPU.

    The certified robustness at alpha is the share of images that provably have neither an accepted
    mistake within eps nor a rejection within alpha · eps.
    """

    radius: Tensor  #: Within it, the network's prediction is correct `(N,)`.
    mistake_radius: Tensor  #: Within it, there is no accepted mistake `(N,)`.
    #: Within it, there is no rejection `(N,)`. All three are -inf if the clean prediction is wrong,
    #: the last one also if the clean image is rejected; inf means everywhere. The search ends at
    #: eps plus the rule's reach.
    rejection_radius: Tensor
    eps: float  #: The budget, in pixel units.
    index: Tensor  #: The images' numbers in their data set `(N,)`.
    rule: str = ""  #: The rule in one phrase.
    seconds: float = 0.0  #: How long the proofs took.

    def __post_init__(self) -> None:
        check_positive(self.eps, "eps")
        for name in COLUMNS:
            column = getattr(self, name)
            check_column(name, column, torch.float64, len(self))
            if bool(column.isnan().any()):
                raise ValueError(f"{name}: expected a radius for each image, got NaN")

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        shares = ", ".join(f"{self.accuracy_at(a):.1%} at alpha {a:g}" for a in (0.0, 0.5, 1.0))
        return f"Certificate({len(self)} images, Linf eps={self.eps:g}: {shares})"

    def accuracy_at(self, alpha: Numbers) -> Numbers:
        """Certified robustness at a share of eps in [0, 1], or at a tensor of them."""
        limit = fractions(alpha) * self.eps
        safe = self.rejection_radius[self.mistake_radius >= self.eps]
        # As 1 - error, so that equal counts make equal shares to the last bit.
        shares = 1 - (len(self) - (safe >= limit[..., None]).double().sum(dim=-1)) / len(self)
        return like(alpha, shares)

    def total_robust_loss(self, loss: LossLike) -> float:
        """A proven upper bound on the total robust loss."""
        # Nothing nearer than the radius is rejected; at 0 that leaves all but the clean image.
        radii = torch.where(self.rejection_radius >= self.eps, torch.inf, self.rejection_radius)
        tiny = torch.finfo(radii.dtype).tiny
        radii = torch.where(radii == 0, tiny, radii).clamp_min(0)
        broken = self.mistake_radius < self.eps
        return float(image_losses(broken, radii, loss, self.eps).mean())

    def summary(self, alphas: tuple[float, ...] = PAPER_ALPHAS) -> dict[str, Any]:
        """The usual figures as plain values, ready for JSON."""
        return {
            "images": len(self),
            "eps": self.eps,
            "rule": self.rule,
            "right_at_eps": float((self.radius >= self.eps).double().mean()),
            "accuracy_at": {f"{alpha:g}": self.accuracy_at(alpha) for alpha in alphas},
            "total_robust_loss": {loss.name: self.total_robust_loss(loss) for loss in PAPER_LOSSES},
            "seconds": self.seconds,
        }

    def check(self, records: Records) -> None:
        """Refuse records of the same images with a point inside a certified radius.

        One of the two must be wrong.
        """
        if not torch.equal(self.index, records.index):
            raise ValueError("certificate and records are of different images")
        mistake = (records.outer_distance, self.mistake_radius, records.outer_by)
        rejection = (records.rejected_radius, self.rejection_radius, records.rejected_by)
        for what, (found, proven, names) in (
            ("an accepted mistake", mistake),
            ("a rejected point", rejection),
        ):
            inside = found.isfinite() & (found <= proven)
            if bool(inside.any()):
                row = int(inside.int().argmax())
                raise ValueError(
                    f"{int(inside.sum())} images have {what} inside the certified radius, the "
                    f"first is image {int(self.index[row])}: {names[row]} found one at "
                    f"{float(found[row]):.6g}, none is proven to be within "
                    f"{float(proven[row]):.6g}. `verify` judges the point again: if it holds, the "
                    "certificate is wrong; if not, the record is"
                )

    def to_rows(self) -> list[dict[str, float | None]]:
        """One dictionary per image; inf becomes None and -inf becomes -1."""
        return plain_rows(
            {f"certified_{name}": getattr(self, name).clamp_min(-1) for name in COLUMNS}
        )

    @classmethod
    def from_rows(
        cls, rows: list[dict[str, Any]], *, eps: float, index: Tensor, **facts: Any
    ) -> Certificate:
        """Make a certificate of `to_rows` dictionaries."""
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            column = distances(rows, f"certified_{name}")
            columns[name] = torch.where(column < 0, -torch.inf, column)
        return cls(**columns, eps=eps, index=index, **facts)
