"""What a claim comes to, and comparisons of methods image by image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from cpr_wrap.metrics import Interval, bootstrap_interval, parse_loss
from cpr_wrap.report.wording import loss_text
from study.read import Result

HOLDS, FAILS, OPEN = "holds", "does not hold", "not measured"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A claim of the paper after a look at our results.

    Attributes:
        claim: What is claimed.
        paper: The paper's figures for it.
        verdict: `holds`, `does not hold` or `not measured`.
        measured: What was measured, one sentence each.
        remarks: Likely reasons and limits, each a measured fact or marked as conjecture.
        limits: The limits in a few words each, for a table.
    """

    claim: str
    paper: str
    verdict: str
    measured: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


def not_measured(claim: str, paper: str, missing: str) -> Verdict:
    """The verdict where results are missing."""
    return Verdict(claim=claim, paper=paper, verdict=OPEN, measured=(missing,))


def decide(holds: bool) -> str:
    """The word for it."""
    return HOLDS if holds else FAILS


@dataclass(frozen=True, kw_only=True)
class Duel:
    """The best CPR against the best baseline in one loss.

    Attributes:
        loss: The loss's name.
        cpr: The better CPR method.
        baseline: The best baseline.
        cpr_loss: Its total robust loss.
        baseline_loss: The baseline's.
        difference: Interval of CPR's loss minus the baseline's, over the images both have.
        images: How many those are.
    """

    loss: str
    cpr: str
    baseline: str
    cpr_loss: float
    baseline_loss: float
    difference: Interval
    images: int

    @property
    def gap(self) -> float:
        """CPR's loss minus the baseline's."""
        return self.cpr_loss - self.baseline_loss

    @property
    def decided(self) -> bool:
        """Whether the interval of the difference leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0

    def __str__(self) -> str:
        return (
            f"{loss_text(parse_loss(self.loss))}: {self.cpr} {self.cpr_loss:.3f}, {self.baseline} "
            f"{self.baseline_loss:.3f}, difference {self.gap:+.3f} "
            f"({self.difference.low:+.3f} to {self.difference.high:+.3f}, n = {self.images})"
        )


def duel(
    table: Mapping[str, Result], cpr: Iterable[str], baselines: Iterable[str], loss: str
) -> Duel | None:
    """The best of each side in one loss, or None where a side has nobody."""
    sides = [
        [table[name] for name in names if name in table] for names in (list(cpr), list(baselines))
    ]
    if not all(sides):
        return None
    ours, theirs = (min(side, key=lambda r: r.curve.total_robust_loss(loss)) for side in sides)
    both = sorted(set(ours.curve.records.index.tolist()) & set(theirs.curve.records.index.tolist()))
    if not both:
        return None
    losses = [_by_index(result, loss, both) for result in (ours, theirs)]
    return Duel(
        loss=loss,
        cpr=ours.method,
        baseline=theirs.method,
        cpr_loss=float(losses[0].mean()),
        baseline_loss=float(losses[1].mean()),
        difference=bootstrap_interval(losses[0] - losses[1]),
        images=len(both),
    )


def _by_index(result: Result, loss: str, index: Sequence[int]) -> torch.Tensor:
    """What each of some images adds to a loss `(N,)`."""
    numbers = result.curve.records.index.tolist()
    place = {number: row for row, number in enumerate(numbers)}
    return result.curve.image_losses(loss)[[place[number] for number in index]]


def percent_of(count: int, total: int) -> str:
    """A count and its share."""
    return f"{count} of {total} ({100 * count / total:.1f} %)"
