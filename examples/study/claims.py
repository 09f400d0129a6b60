"""The comparisons that the plan names, and what became of the paper's claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cpr_wrap.metrics import PAPER_LOSSES, RobustnessCurve, parse_loss
from cpr_wrap.metrics.comparison import Difference, paired_loss

Results = Mapping[str, RobustnessCurve]
"""Published results by `stage/name`."""

LEVEL = 0.05
CPR, BASELINES = ("at-cpr", "trades-cpr"), ("at-cr", "trades-cr", "ccat", "rcd", "atrr")
SMALL, ALL = (
    ("step:0", "step:0.01", "step:0.05", "step:0.1"),
    tuple(loss.name for loss in PAPER_LOSSES),
)


@dataclass(frozen=True)
class Comparison:
    """Does the first lose less than the second, or more?

    Attributes:
        claim: Which of the paper's claims, or of ours, it belongs to.
        first: Results of which the best counts.
        second: The same for the other side.
        loss: Name of the loss.
        less: Whether the claim says that the first loses less.
    """

    claim: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    loss: str
    less: bool = True

    def sides(self, results: Results) -> tuple[str, str] | None:
        """The best of each side by this loss; None where a result is missing."""
        best = []
        for names in (self.first, self.second):
            if any(name not in results for name in names):
                return None
            best.append(min(names, key=lambda name: self.value(results[name])))
        return best[0], best[1]

    def value(self, curve: RobustnessCurve) -> float:
        """The loss of one result."""
        return curve.total_robust_loss(parse_loss(self.loss))

    def measure(self, results: Results) -> Difference | None:
        """The paired difference of the two sides on the images of both."""
        sides = self.sides(results)
        if sides is None:
            return None
        return paired_loss(results[sides[0]], results[sides[1]], parse_loss(self.loss))


def _main(names: tuple[str, ...], eps: str) -> tuple[str, ...]:
    return tuple(f"main/{name}-{eps}" for name in names)


CLAIMS = {
    "1": "Seen attacks, small α₀: CPR has the smallest total robust loss",
    "2": "Unseen attacks, every loss: CPR has the smallest total robust loss",
    "3": "Seen attacks, ramps 1 and 2: CPR is worse than the best baseline",
    "4": "At α = 0 a network with CPR is more robust than without rejection",
    "5": "Unseen attacks, every loss: verified consistency loses less than CPR",
    "6": "Unseen attacks, α = 0: the variant of T is more robust than Algorithm 1",
    "7": "HCMOA breaks CCAT more often than PGD with backtracking",
    "9": "A larger radius of CPR helps at α = 0 and hurts at α = 1",
}


def comparisons() -> Iterator[Comparison]:
    """Every comparison of the plan that is tested."""
    for loss in SMALL:
        yield Comparison("1", _main(CPR, "0.3"), _main(BASELINES, "0.3"), loss)
    for loss in ALL:
        yield Comparison("2", _main(CPR, "0.4"), _main(BASELINES, "0.4"), loss)
    for loss in ("ramp:1", "ramp:2"):
        yield Comparison("3", _main(CPR, "0.3"), _main(BASELINES, "0.3"), loss, less=False)
    for network in ("at", "trades"):
        for eps in ("0.3", "0.4"):
            with_cpr = _main((f"{network}-cpr",), eps)
            yield Comparison("4", with_cpr, _main((network,), eps), "step:0")
    for loss in ALL:
        yield Comparison("5", _main(("verified",), "0.4"), _main(CPR, "0.4"), loss)
    variant = _main(("at-cpr-variant",), "0.4")
    yield Comparison("6", variant, _main(("at-cpr",), "0.4"), "step:0")
    for eps in ("0.3", "0.4"):
        stronger = (f"ccat/ccat-{eps}-HCMOA",)
        weaker = (f"ccat/ccat-{eps}-PGD-backtracking",)
        yield Comparison("7", stronger, weaker, "step:0", less=False)
    large, small = ("radius/radius-0.2-0.4",), ("radius/radius-0.05-0.4",)
    yield Comparison("9", large, small, "step:0")
    yield Comparison("9", large, small, "step:1", less=False)


@dataclass(frozen=True)
class Tested:
    """A comparison with what came of it.

    Attributes:
        comparison: The comparison.
        found: The difference; None where a result is missing.
        beyond_chance: After Holm's correction over all comparisons of the plan.
    """

    comparison: Comparison
    found: Difference | None
    beyond_chance: bool

    @property
    def holds(self) -> bool | None:
        """Whether it is as claimed; None where chance may be all there is."""
        if self.found is None or not self.beyond_chance:
            return None
        return (self.found.gap < 0) == self.comparison.less


def tested(results: Results) -> list[Tested]:
    """All comparisons, with Holm's correction; missing ones count as tests all the same."""
    found = [(each, each.measure(results)) for each in comparisons()]
    order = sorted(range(len(found)), key=lambda place: _chance(found[place][1]))
    beyond = set()
    for rank, place in enumerate(order):
        if _chance(found[place][1]) > LEVEL / (len(found) - rank):
            break
        beyond.add(place)
    return [Tested(each, value, place in beyond) for place, (each, value) in enumerate(found)]


def _chance(found: Difference | None) -> float:
    return 1.0 if found is None else found.chance


def verdict(claim: str, tests: list[Tested]) -> str:
    """`holds`, `does not hold`, `undecided`, or `not run`."""
    mine = [test for test in tests if test.comparison.claim == claim]
    if any(test.found is None for test in mine):
        return "not run"
    if any(test.holds is False for test in mine):
        return "does not hold"
    return "holds" if all(test.holds for test in mine) else "undecided"
