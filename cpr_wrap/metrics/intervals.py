"""Confidence intervals: exact ones for proportions, bootstrap ones for any mean over images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap._checks import check_share

_BLOCK = 4_000_000  # resampled entries held in memory at a time


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval and how it was made.

    Attributes:
        low: Lower end.
        high: Upper end.
        level: Confidence level, e.g. 0.95.
        method: `bootstrap` or `clopper-pearson`.
        seed: Seed of the resampling; None for exact intervals.
        resamples: Number of resamples; None for exact intervals.
    """

    low: float
    high: float
    level: float
    method: str
    seed: int | None = None
    resamples: int | None = None

    def __str__(self) -> str:
        return f"[{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """Pointwise confidence intervals of several means, all from the same resamples.

    Attributes:
        low: Lower ends `(M,)`.
        high: Upper ends `(M,)`.
        level: Confidence level of each single one.
        seed: Seed of the resampling.
        resamples: Number of resamples.
    """

    low: Tensor
    high: Tensor
    level: float
    seed: int
    resamples: int


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Exact interval for a proportion: it covers the true one at least as often as `level` says.

    Args:
        successes: How often it happened.
        trials: How often it could have.
        level: Confidence level, between 0 and 1.

    Returns:
        The interval; one-sided where nothing or everything happened.
    """
    check_share(level, "level")
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(
            "expected 0 <= successes <= trials and at least one trial, "
            f"got {successes} successes in {trials} trials"
        )
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else _proportion_with_tail(successes, trials, tail)
    # At most k successes is at least n - k failures, so the upper end is a mirrored lower end.
    failures = trials - successes
    high = 1.0 if failures == 0 else 1 - _proportion_with_tail(failures, trials, tail)
    return Interval(low=low, high=high, level=level, method="clopper-pearson")


def _proportion_with_tail(successes: int, trials: int, tail: float) -> float:
    """The proportion under which at least `successes` of `trials` has probability `tail`."""
    count = torch.arange(successes, trials + 1, dtype=torch.float64)
    total = torch.tensor(trials, dtype=torch.float64)
    ways = torch.lgamma(total + 1) - torch.lgamma(count + 1) - torch.lgamma(total - count + 1)
    low, high = 0.0, 1.0
    middle = 0.5
    while low < middle < high:  # until float64 has no number between the two
        log_odds = count * math.log(middle) + (total - count) * math.log1p(-middle)
        if float(torch.logsumexp(ways + log_odds, dim=0)) < math.log(tail):
            low = middle
        else:
            high = middle
        middle = (low + high) / 2
    return middle


def bootstrap_means(values: Tensor, *, resamples: int = 1000, seed: int = 0) -> Tensor:
    """Means over images drawn with replacement.

    Args:
        values: One value an image `(N,)`, or several `(N, M)`; the same draws serve all columns.
        resamples: How often to draw N images.
        seed: Seed of the draws; no global generator is touched.

    Returns:
        Means `(resamples,)` or `(resamples, M)`, float64.
    """
    count = len(values)
    if count == 0:
        raise ValueError("expected values of at least one image, got none")
    if resamples < 1:
        raise ValueError(f"resamples: expected at least 1, got {resamples}")
    generator = torch.Generator().manual_seed(seed)
    columns = values.detach().to("cpu", torch.float64)
    means = []
    for start in range(0, resamples, block := max(1, _BLOCK // count)):
        rows = min(block, resamples - start)
        drawn = torch.randint(count, (rows, count), generator=generator)
        times = torch.zeros(rows, count, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones_like(times))
        means.append(times @ columns / count)
    return torch.cat(means)


def bootstrap_band(
    values: Tensor, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Band:
    """Percentile bootstrap of the means of several columns.

    Args:
        values: One row an image `(N, M)`.
        level: Confidence level, between 0 and 1.
        resamples: How often to draw.
        seed: Seed of the draws.

    Returns:
        The pointwise band `(M,)`.
    """
    check_share(level, "level")
    means = bootstrap_means(values, resamples=resamples, seed=seed)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = means.quantile(ends, dim=0)
    return Band(low=low, high=high, level=level, seed=seed, resamples=resamples)


def bootstrap_interval(
    values: Tensor, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of a mean over images.

    Where all images agree it has no width, however few they are; `clopper_pearson` is the honest
    choice for a proportion near 0 or 1.

    Args:
        values: One value an image `(N,)`.
        level: Confidence level, between 0 and 1.
        resamples: How often to draw.
        seed: Seed of the draws.

    Returns:
        The interval, with its seed.
    """
    band = bootstrap_band(values[:, None], level=level, resamples=resamples, seed=seed)
    return Interval(
        low=float(band.low[0]),
        high=float(band.high[0]),
        level=level,
        method="bootstrap",
        seed=seed,
        resamples=resamples,
    )
