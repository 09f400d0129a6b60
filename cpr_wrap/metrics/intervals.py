"""Confidence intervals over images: one policy for tables, files, reports and studies.

A share of images gets the exact interval of Clopper and Pearson. Any other mean of values in [0, 1]
gets a percentile bootstrap. Where all images agree a bootstrap would have no width; such a mean
gets Hoeffding's interval. So no interval is ever a single number.

`richness` estimates what more rounds of the same attacks would break.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cpr_wrap._checks import check_share

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval and its method."""

    low: float  #: Lower end.
    high: float  #: Upper end.
    level: float  #: Confidence level, e.g. 0.95.
    method: str  #: `clopper-pearson`, `bootstrap` or `hoeffding`.

    def __str__(self) -> str:
        return f"[{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """Pointwise exact intervals of several shares."""

    low: Tensor  #: Lower ends `(M,)`.
    high: Tensor  #: Upper ends `(M,)`.
    level: float  #: Confidence level of each interval.


def share_band(counts: Tensor, trials: int, level: float = LEVEL) -> Band:
    """Exact intervals of shares: each covers the true share with probability `level` or more.

    Args:
        counts: Numbers of successes `(M,)`.
        trials: Number of trials.
        level: Confidence level, between 0 and 1.

    Returns:
        The intervals; one-sided for 0 successes and for `trials` successes.
    """
    from scipy.stats import beta

    check_share(level, "level")
    k = counts.double().cpu().numpy()
    if trials < 1 or not np.all((k >= 0) & (k <= trials)):
        raise ValueError(
            "expected 0 <= successes <= trials and at least one trial, "
            f"got {counts.tolist()} successes in {trials} trials"
        )
    tail = (1 - level) / 2
    # A beta distribution needs both parameters above 0; those ends are 0 and 1.
    low = np.where(k > 0, beta.ppf(tail, np.maximum(k, 1), trials - k + 1), 0.0)
    high = np.where(k < trials, beta.isf(tail, k + 1, np.maximum(trials - k, 1)), 1.0)
    return Band(low=torch.from_numpy(low), high=torch.from_numpy(high), level=level)


def clopper_pearson(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """The exact interval of one share; see `share_band`.

    Example:
        >>> interval = clopper_pearson(0, 20)
        >>> round(interval.low, 3), round(interval.high, 3)
        (0.0, 0.168)
    """
    band = share_band(torch.tensor([successes]), trials, level)
    return Interval(
        low=float(band.low[0]), high=float(band.high[0]), level=level, method="clopper-pearson"
    )


def mean_interval(
    values: Tensor, level: float = LEVEL, *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Confidence interval of the mean over images of values in [0, 1].

    Args:
        values: One value per image `(N,)`.
        level: Confidence level, between 0 and 1.
        resamples: Resamples, if it is a bootstrap.
        seed: Seed of the bootstrap; the global generator is not used.

    Example:
        >>> import torch
        >>> interval = mean_interval(torch.tensor([0.0, 0.5, 1.0, 1.0]))
        >>> interval.method, 0 <= interval.low < 0.625 < interval.high <= 1
        ('bootstrap', True)
    """
    check_share(level, "level")
    if len(values) == 0:
        raise ValueError("expected values of at least one image, got none")
    values = values.detach().double().cpu()
    if bool(((values == 0) | (values == 1)).all()):
        return clopper_pearson(int(values.sum()), len(values), level)
    if bool((values == values[0]).all()):
        reach = math.sqrt(math.log(2 / (1 - level)) / (2 * len(values)))
        mean = float(values[0])
        low, high = max(0.0, mean - reach), min(1.0, mean + reach)
        return Interval(low=low, high=high, level=level, method="hoeffding")
    from scipy.stats import bootstrap

    found = bootstrap(
        (values.numpy(),),
        np.mean,
        confidence_level=level,
        n_resamples=resamples,
        batch=max(1, 4_000_000 // len(values)),
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(low=float(found.low), high=float(found.high), level=level, method="bootstrap")


class Richness(NamedTuple):
    """Estimates of how many images can be broken by rounds like those that were made."""

    broken: int  # in any round
    jackknife: float
    chao: float
    low: float  # ends of Chao's interval
    high: float

    @property
    def more(self) -> tuple[int, int]:
        """About how many more would fall, from and to."""
        ends = (self.jackknife, self.chao)
        return math.floor(min(ends)) - self.broken, math.ceil(max(*ends, self.high)) - self.broken


def richness(found: Tensor, level: float = LEVEL) -> Richness:
    """Estimate from who was broken in which round, booleans `(rounds, images)`.

    Rounds that attack every image anew, broken or not, are like visits of an ecologist to one site:
    an image broken in one round alone hints at others that were missed. The estimators are the
    first-order jackknife (Burnham and Overton 1978) and Chao2 with its log-normal interval (Chao
    1987). They cannot see a stronger attack, and never correct a curve.
    """
    check_share(level, "level")
    if found.dim() != 2 or len(found) < 2:
        raise ValueError(
            f"expected at least two rounds (rounds, images), got shape {tuple(found.shape)}"
        )
    rounds, images = found.shape
    often = found.long().sum(dim=0)
    broken = int((often >= 1).sum())
    once, twice = (int((often == times).sum()) for times in (1, 2))
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
    estimates = (broken + share * once, broken + missed, low, high)
    return Richness(broken, *(min(float(images), estimate) for estimate in estimates))
