"""What a claim comes to, and comparisons of two results image by image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

import torch

from cpr_wrap.metrics import bootstrap_interval
from study.read import Result

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
OPEN = "not measured"

_CHANCE = 0.05

Line = list[str]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A claim of the paper after a look at our results.

    Attributes:
        claim: What is claimed.
        paper: The paper's figures for it; empty if they are in the table.
        verdict: `holds`, `does not hold`, `undecided` or `not measured`.
        head: Titles of a table with what was measured, if there is one.
        lines: Its lines.
        measured: What was measured, one sentence each.
        remarks: Likely reasons and limits, each a measured fact or marked as conjecture.
        limits: The limits in a few words each, for a table.
    """

    claim: str
    paper: str
    verdict: str
    head: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    measured: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


def not_measured(claim: str, paper: str, missing: str) -> Verdict:
    """The verdict where results are missing."""
    return Verdict(claim=claim, paper=paper, verdict=OPEN, measured=(missing,))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One mean minus another over the same images.

    Attributes:
        gap: The difference.
        sign: 1 or -1 where it is beyond chance, at 95 %; 0 where chance may be all there is.
        images: How many images.
        how: What that rests on, in a few words.
    """

    gap: float
    sign: int
    images: int
    how: str

    def __neg__(self) -> Difference:
        return replace(self, gap=-self.gap, sign=-self.sign)

    def __str__(self) -> str:
        return f"{self.gap:+.3f} ({self.how})"


def counted(more: int, fewer: int, images: int) -> Difference:
    """The difference of two shares of the same images, by an exact sign test.

    A bootstrap is too sure of itself where only a handful of images differ.

    Args:
        more: Images that only the first counts.
        fewer: Images that only the second counts.
        images: All images.
    """
    differ = more + fewer
    tail = sum(comb(differ, count) for count in range(max(more, fewer), differ + 1))
    chance = min(1.0, 2 * tail / 2**differ)
    shown = f"p = {chance:.3f}" if chance >= 0.001 else "p < 0.001"
    return Difference(
        gap=(more - fewer) / images,
        sign=0 if chance > _CHANCE else (1 if more > fewer else -1),
        images=images,
        how=f"{more} : {fewer}, {shown}",
    )


def paired(first: Result, second: Result, loss: str) -> Difference | None:
    """The first's total robust loss minus the second's, or None if they share no image."""
    both = sorted(set(_numbers(first)) & set(_numbers(second)))
    if not both:
        return None
    apart = _by_index(first, loss, both) - _by_index(second, loss, both)
    if bool((apart == apart.round()).all()):
        return counted(int((apart > 0).sum()), int((apart < 0).sum()), len(both))
    interval = bootstrap_interval(apart, level=1 - _CHANCE)
    return Difference(
        gap=float(apart.mean()),
        sign=int(interval.low > 0) - int(interval.high < 0),
        images=len(both),
        how=f"{interval.low:+.3f} to {interval.high:+.3f}",
    )


def _numbers(result: Result) -> list[int]:
    numbers: list[int] = result.curve.records.index.tolist()
    return numbers


def _by_index(result: Result, loss: str, index: Sequence[int]) -> torch.Tensor:
    """What each of some images adds to a loss `(N,)`."""
    place = {number: row for row, number in enumerate(_numbers(result))}
    return result.curve.image_losses(loss)[[place[number] for number in index]]


def decide(differences: Sequence[Difference], *, complete: bool = True) -> str:
    """The word for differences that the claim says are positive.

    Args:
        differences: Each of them; one beyond chance against the claim is enough to refuse it.
        complete: Whether everything that the claim is about was measured.
    """
    signs = [one.sign for one in differences]
    if complete and -1 in signs:
        return FAILS
    return HOLDS if complete and signs and set(signs) == {1} else UNDECIDED


def tally(differences: Sequence[Difference]) -> tuple[str, ...]:
    """How many differences are beyond chance, where not all are for the claim."""
    signs = [one.sign for one in differences]
    counts = ((signs.count(0), "within chance"), (signs.count(-1), "against it"))
    return tuple(f"{n} of {len(signs)} comparisons {text}" for n, text in counts if n)


@dataclass(frozen=True, kw_only=True)
class Duel:
    """The best CPR against the best baseline in one loss.

    Attributes:
        loss: The loss's name.
        cpr: The better CPR method.
        baseline: The best baseline.
        losses: The loss of each, over the images both have.
        difference: The first minus the second.
    """

    loss: str
    cpr: Result
    baseline: Result
    losses: tuple[float, float]
    difference: Difference


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
    difference = paired(ours, theirs, loss)
    if difference is None:
        return None
    both = sorted(set(_numbers(ours)) & set(_numbers(theirs)))
    mean, other = (float(_by_index(result, loss, both).mean()) for result in (ours, theirs))
    return Duel(loss=loss, cpr=ours, baseline=theirs, losses=(mean, other), difference=difference)


def percent_of(count: int, total: int) -> str:
    """A count and its share."""
    return f"{count} of {total} ({100 * count / total:.1f} %)"
