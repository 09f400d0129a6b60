"""How many more images would more of the same attacks break? Estimates from repeated rounds.

Rounds that attack every image anew, broken or not, are like visits of an ecologist to one site: an
image broken in one round alone hints at others that were missed. The estimators are the first-order
jackknife (Burnham and Overton 1978) and Chao2 with its log-normal interval (Chao 1987). They cannot
see a stronger attack, and never correct a curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from cpr_wrap._checks import check_share
from cpr_wrap.metrics.intervals import LEVEL


@dataclass(frozen=True, kw_only=True)
class Richness:
    """Estimates of how many images can be broken by rounds like those that were made.

    Attributes:
        rounds: How many rounds there were.
        images: How many images each attacked.
        broken: Images broken in any round.
        once: Images broken in one round alone.
        twice: Images broken in exactly two.
        jackknife: First-order jackknife of the number that can be broken.
        chao: Chao2 of it.
        low: Lower end of Chao's interval.
        high: Upper end of it.
    """

    rounds: int
    images: int
    broken: int
    once: int
    twice: int
    jackknife: float
    chao: float
    low: float
    high: float

    @property
    def more(self) -> tuple[int, int]:
        """About how many more would fall, from and to."""
        ends = (self.jackknife, self.chao)
        return math.floor(min(ends)) - self.broken, math.ceil(max(*ends, self.high)) - self.broken


def richness(found: Tensor, level: float = LEVEL) -> Richness:
    """Estimate from who was broken in which round.

    Args:
        found: Whether each round broke each image, booleans `(rounds, images)`.
        level: Of Chao's interval.
    """
    check_share(level, "level")
    if found.dim() != 2 or len(found) < 2:
        raise ValueError(
            f"expected at least two rounds of images (rounds, images), got shape "
            f"{tuple(found.shape)}"
        )
    rounds, images = found.shape
    often = found.long().sum(dim=0)
    broken, once, twice = (
        int((often >= 1).sum()),
        int((often == 1).sum()),
        int((often == 2).sum()),
    )
    share = (rounds - 1) / rounds
    # The bias-corrected form is defined where no image was broken exactly twice, too.
    missed = share * once * (once - 1) / (2 * (twice + 1))
    variance = (
        missed
        + share**2 * once * (2 * once - 1) ** 2 / (4 * (twice + 1) ** 2)
        + share**2 * once**2 * twice * (once - 1) ** 2 / (4 * (twice + 1) ** 4)
    )
    low = high = float(broken)
    if missed > 0:
        from scipy.stats import norm

        z = float(norm.ppf((1 + level) / 2))
        spread = math.exp(z * math.sqrt(math.log(1 + variance / missed**2)))
        low, high = broken + missed / spread, broken + missed * spread
    cap = float(images)
    return Richness(
        rounds=rounds,
        images=images,
        broken=broken,
        once=once,
        twice=twice,
        jackknife=min(cap, broken + share * once),
        chao=min(cap, broken + missed),
        low=min(cap, low),
        high=min(cap, high),
    )
