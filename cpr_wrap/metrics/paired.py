"""Is a difference between two runs more than chance? Tests image by image, on shared images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap.metrics.curve import RobustnessCurve
from cpr_wrap.metrics.intervals import LEVEL
from cpr_wrap.metrics.losses import LossLike

_DRAWS = 9_999


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One mean loss minus another over the same images.

    Attributes:
        gap: The difference.
        chance: How often a gap at least as large arises if every image's sign were a coin's.
        images: How many images.
    """

    gap: float
    chance: float
    images: int

    @property
    def sign(self) -> int:
        """1 or -1 where the gap is beyond chance, at 95 %; 0 where chance may be all there is."""
        return 0 if self.chance > 1 - LEVEL else (1 if self.gap > 0 else -1)

    def __str__(self) -> str:
        shown = f"p = {self.chance:.3f}" if self.chance >= 0.001 else "p < 0.001"
        return f"{self.gap:+.3f} ({shown}, {self.images} images)"


def sign_flip_test(apart: Tensor) -> float:
    """How often differences `(N,)` sum to as much if every one's sign were a coin's, two-sided.

    Exact where all differences are of one size (the sign test) and for up to 13 of them; by
    drawing signs else, with a fixed seed.
    """
    import numpy as np
    from scipy.stats import binomtest, permutation_test

    apart = apart.detach().double().cpu()
    apart = apart[apart != 0]
    if len(apart) == 0:
        return 1.0
    if bool((apart.abs() == apart[0].abs()).all()):
        return float(binomtest(int((apart > 0).sum()), len(apart)).pvalue)
    found = permutation_test(
        (apart.numpy(),),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=_DRAWS,
        batch=max(1, 4_000_000 // len(apart)),
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def paired(first: Tensor, second: Tensor) -> Difference:
    """The mean of the first minus that of the second, of losses `(N,)` of the same images."""
    if first.shape != second.shape or first.dim() != 1 or len(first) == 0:
        raise ValueError(
            "expected two losses for each of the same images, got shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    apart = first.double() - second.double()
    return Difference(gap=float(apart.mean()), chance=sign_flip_test(apart), images=len(apart))


def paired_loss(
    first: RobustnessCurve, second: RobustnessCurve, loss: LossLike
) -> Difference | None:
    """The first's total robust loss minus the second's on the images of both; None without any."""
    rows = [{n: row for row, n in enumerate(c.records.index.tolist())} for c in (first, second)]
    both = sorted(rows[0].keys() & rows[1].keys())
    if not both:
        return None
    losses = [
        curve.image_losses(loss)[[place[number] for number in both]]
        for curve, place in zip((first, second), rows, strict=True)
    ]
    return paired(losses[0], losses[1])


def clear_winner(losses: Sequence[Tensor]) -> int | None:
    """Which of several loses least by more than chance; None where none does.

    The least mean must beat every other one in a paired test at 95 %. That holds at 95 % for any
    number of rivals: a winner by chance has to beat the runner-up by chance.

    Args:
        losses: Losses `(N,)` of the same images, one tensor a rival.
    """
    if len(losses) < 2:
        return None
    means = torch.stack([each.double().mean() for each in losses])
    best = int(means.argmin())
    others = (each for place, each in enumerate(losses) if place != best)
    return best if all(paired(losses[best], each).sign < 0 for each in others) else None
