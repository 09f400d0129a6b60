"""What `advise` tries on a network, and what it answers: candidates, and which of them to take."""

from __future__ import annotations

import timeit
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cpr_wrap._checks import data_frame
from cpr_wrap.calibration import calibrate
from cpr_wrap.metrics import Interval, RobustnessCurve
from cpr_wrap.metrics.comparison import Difference, paired_loss
from cpr_wrap.metrics.losses import RejectionLoss
from cpr_wrap.rule import BySearch, RejectionRule, make_rule, rule_config
from cpr_wrap.rules import AcceptAll, Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier

STATUSES = ADVISED, TIED, BEATEN, LEFT_OUT = "advised", "tied", "beaten", "left out"
"""Of candidates, best first."""
RADII = (0.1, 0.2, 1 / 3, 0.5, 2 / 3)
"""Consistency radii to try, as shares of eps."""
STEPS = (5, 20)
RATES = (0.01, 0.05)
"""Shares of right answers to reject, for settings that calibration finds."""

_ROUNDS = 5


@dataclass(eq=False, kw_only=True)
class Candidate:
    """A rule, and what was measured for it."""

    model: SelectiveClassifier  #: The network with the rule.
    clean_rejection: float  #: Share of clean validation images that it rejects.
    latency: float  #: Seconds per prediction of one image.
    #: Its curve on the validation images so far; None if it was excluded.
    curve: RobustnessCurve | None = None
    full: bool = False  #: Whether it was attacked with the full budget.
    #: Its curve on the other images, if it was among the best.
    reported: RobustnessCurve | None = None
    status: str = BEATEN  #: `advised`, `tied`, `beaten` or `left out`.
    why: str = ""  #: Why it was excluded.

    @property
    def rule(self) -> RejectionRule:
        """The rule."""
        return self.model.rule

    @property
    def passes(self) -> int:
        """Forwards and backwards of one verdict."""
        return self.rule.cost.total


@dataclass(frozen=True, eq=False, kw_only=True)
class Advice:
    """All candidates, the advised one first, then by their loss."""

    candidates: tuple[Candidate, ...]  #: The candidates.
    cost: RejectionLoss  #: What a rejection costs.
    eps: float  #: Budget of the adversary.
    norm: str  #: Its norm.
    budget: str  #: Name of the full budget.
    images: tuple[int, int]  #: Number of images for the choice, and for the report.
    notes: tuple[str, ...] = ()  #: Remarks for the reader.

    @property
    def best(self) -> Candidate:
        """The advised candidate."""
        return self.candidates[0]

    @property
    def tied(self) -> list[Candidate]:
        """Candidates whose difference from the advised one is within chance."""
        return [each for each in self.candidates if each.status == TIED]

    @property
    def gain(self) -> Difference | None:
        """The loss without rejection minus that of the advised rule, on the other images.

        None if no rejection is advised, or was not a candidate.
        """
        plain = [c for c in self.candidates if not c.rule.can_reject and c.reported]
        if not plain or plain[0] is self.best:
            return None
        first, second = plain[0].reported, self.best.reported
        return paired_loss(first, second, self.cost) if first and second else None

    def loss(self, curve: RobustnessCurve) -> tuple[float, Interval]:
        """The total robust loss and its interval over images."""
        return curve.total_robust_loss(self.cost), curve.total_robust_loss_interval(self.cost)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per candidate, with the same ASCII keys in every version."""
        made = []
        for each in self.candidates:
            row: dict[str, Any] = {
                "rule": each.rule.describe(),
                "settings": rule_config(each.rule),
                "status": each.status,
                "why": each.why,
                "clean_rejection": each.clean_rejection,
                "latency_ms": 1000 * each.latency,
                "passes_per_prediction": each.passes,
                "full_budget": each.full,
            }
            for name, curve in (("validation", each.curve), ("reported", each.reported)):
                loss, interval = (None, None) if curve is None else self.loss(curve)
                row[f"{name}_loss"] = loss
                row[f"{name}_low"] = None if interval is None else interval.low
                row[f"{name}_high"] = None if interval is None else interval.high
            made.append(row)
        return made

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        return data_frame(self.rows())

    def __str__(self) -> str:
        words = f"{self.best.rule.describe()} loses least ({self.cost.name})"
        if self.tied:
            names = ", ".join(each.rule.describe() for each in self.tied)
            words = (
                f"a tie within chance on {self.images[0]} images between "
                f"{self.best.rule.describe()} and {names}; the first is the cheapest of them"
            )
        assert self.best.reported is not None
        loss, interval = self.loss(self.best.reported)
        return (
            f"{words}. On {self.images[1]} other images: total robust loss {loss:.3f} "
            f"({interval.low:.3f} to {interval.high:.3f})"
        )


def default_candidates(
    model: SelectiveClassifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    norm: str,
    *,
    radii: Sequence[float] | None = None,
    steps: Sequence[int] = STEPS,
    thresholds: Sequence[float] | None = None,
) -> tuple[list[RejectionRule], list[str]]:
    """Rules to try: none, confidence, CPR, verified consistency where that works, and the own one.

    The radii are shares of eps and what calibration finds, the thresholds what calibration finds,
    unless they are given. Images `(N, ...)` and classes `(N,)` are the validation set.
    """
    notes: list[str] = []
    shares = [share * eps for share in RADII]
    rules: list[RejectionRule] = [AcceptAll()]
    if thresholds is None:
        rules += _calibrated(model.with_rule(Confidence()), x, y, notes)
    else:
        rules += [Confidence(threshold=threshold) for threshold in thresholds]
    for count in steps:
        start = Consistency(radius=eps, steps=count, norm=norm)
        found = list(_calibrated(model.with_rule(start), x, y, notes))
        rules += found if radii is None else []  # their notes are for the reader in any case
        wanted = shares if radii is None else radii
        rules += [Consistency(radius=radius, steps=count, norm=norm) for radius in wanted]
    rules += [*_verified(model, x[:1], radii or shares, notes), model.rule]
    usual = model.rule.extra_outputs
    rules = [rule for rule in rules if rule.extra_outputs == usual]
    return list(dict.fromkeys(rules)), list(dict.fromkeys(notes))


def _calibrated(
    model: SelectiveClassifier, x: Tensor, y: Tensor, notes: list[str]
) -> Iterator[RejectionRule]:
    """A rule set to each rate, the data's range being its only limit."""
    records = [calibrate(model, x, y, rate).record for rate in RATES]
    notes += [record.note for record in records if "is below half a" in record.note]
    searched = isinstance(model.rule.calibrated_by, BySearch)
    made = [record for record in records if record.num_rejected or searched]
    if not made:
        notes.append(f"{model.rule.name} is left out: {records[-1].note}")
    yield from (record.after for record in made)


def _verified(
    model: SelectiveClassifier, x: Tensor, radii: Sequence[float], notes: list[str]
) -> Iterator[RejectionRule]:
    """Verified consistency, where the network can be bounded."""
    for radius in radii:
        try:
            rule = make_rule("verified", {"radius": radius})
            model.with_rule(rule)(x)
        except Exception as error:  # whatever a network that cannot be bounded ends in
            notes.append(f"verified is left out: {' '.join(str(error).split())}")
            return
        yield rule


def latency(model: SelectiveClassifier, x: Tensor) -> float:
    """Seconds that a prediction of one image takes: the quickest of several after a first one.

    Other work on the machine lengthens that one least.
    """
    rounds = timeit.repeat(lambda: bool(model(x[:1]).accepted), number=1, repeat=_ROUNDS + 1)
    return min(rounds[1:])
