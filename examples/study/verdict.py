"""What a claim comes to, and comparisons of two results image by image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import comb

import torch
from torch import Tensor

from study.losses import image_losses
from study.read import Result

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
OPEN = "not measured"

_CHANCE = 0.05
_EXACT = 13  # so many images may differ for all their signs to be tried
_DRAWS = 10_000

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
    return _judged((more - fewer) / images, chance, images, f"{more} : {fewer}, ")


def _judged(gap: float, chance: float, images: int, before: str = "") -> Difference:
    shown = f"p = {chance:.3f}" if chance >= 0.001 else "p < 0.001"
    sign = 0 if chance > _CHANCE else (1 if gap > 0 else -1)
    return Difference(gap=gap, sign=sign, images=images, how=f"{before}{shown}")


def paired(
    first: Result, second: Result, loss: str, on: Sequence[int] | None = None
) -> Difference | None:
    """The first's total robust loss minus the second's, or None if they share no image.

    Args:
        first: A result.
        second: Another.
        loss: The loss's name.
        on: Numbers of the images; all that both have if left out.
    """
    both = shared([first, second]) if on is None else on
    if not both:
        return None
    apart = losses_on(first, loss, both) - losses_on(second, loss, both)
    if bool((apart == apart.round()).all()):
        return counted(int((apart > 0).sum()), int((apart < 0).sum()), len(both))
    return _judged(float(apart.mean()), chance_of(apart), len(both))


def chance_of(apart: Tensor) -> float:
    """How often differences `(N,)` are as large in the mean if every one's sign were a coin's.

    For differences of one this is the sign test.
    """
    apart = apart[apart != 0]
    if len(apart) <= _EXACT:
        signs = torch.tensor(list(product((-1.0, 1.0), repeat=len(apart))), dtype=apart.dtype)
        means = (signs @ apart).abs()
        return float((means >= apart.sum().abs() - 1e-12).double().mean())
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_DRAWS, len(apart)), generator=generator).to(apart.dtype) * 2 - 1
    as_large = int(((signs @ apart).abs() >= apart.sum().abs() - 1e-12).sum())
    return (1 + as_large) / (1 + _DRAWS)


def shared(results: Iterable[Result]) -> list[int]:
    """Numbers of the images that all of some results have."""
    return sorted(set.intersection(*(set(_numbers(result)) for result in results)))


def _numbers(result: Result) -> list[int]:
    numbers: list[int] = result.curve.records.index.tolist()
    return numbers


def losses_on(result: Result, loss: str, index: Sequence[int]) -> Tensor:
    """What each of some images adds to a loss, by the paper's rule `(N,)`."""
    place = {number: row for row, number in enumerate(_numbers(result))}
    return image_losses(result.curve, loss)[[place[number] for number in index]]


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
        losses: The loss of each, over the images that all methods have.
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
    on = shared(result for side in sides for result in side)
    if not on:
        return None

    def mean(result: Result) -> float:
        return float(losses_on(result, loss, on).mean())

    ours, theirs = (min(side, key=mean) for side in sides)
    difference = paired(ours, theirs, loss, on)
    assert difference is not None
    both = mean(ours), mean(theirs)
    return Duel(loss=loss, cpr=ours, baseline=theirs, losses=both, difference=difference)


def percent_of(count: int, total: int) -> str:
    """A count and its share."""
    return f"{count} of {total} ({100 * count / total:.1f} %)"
