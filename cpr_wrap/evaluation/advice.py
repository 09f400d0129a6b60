"""What `advise` answers: all candidates with their figures, and which of them to take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpr_wrap._checks import data_frame
from cpr_wrap.metrics import Interval, RobustnessCurve
from cpr_wrap.metrics.comparison import Difference, paired_loss
from cpr_wrap.metrics.losses import RejectionLoss
from cpr_wrap.rule import RejectionRule, rule_config
from cpr_wrap.selective import SelectiveClassifier

ADVISED, TIED, BEATEN, LEFT_OUT = "advised", "tied", "beaten", "left out"


@dataclass(eq=False, kw_only=True)
class Candidate:
    """A rule, and what was measured for it.

    Attributes:
        model: The network with the rule.
        clean_rejection: Share of clean validation images that it rejects.
        latency: Seconds per prediction of one image.
        curve: Its curve on the validation images so far; None if it was excluded.
        full: Whether it was attacked with the full budget.
        reported: Its curve on the other images, if it was among the best.
        status: `advised`, `tied`, `beaten` or `left out`.
        why: Why it was excluded.
    """

    model: SelectiveClassifier
    clean_rejection: float
    latency: float
    curve: RobustnessCurve | None = None
    full: bool = False
    reported: RobustnessCurve | None = None
    status: str = BEATEN
    why: str = ""

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
    """All candidates, the advised one first, then by their loss.

    Attributes:
        candidates: The candidates.
        cost: What a rejection costs.
        eps: Budget of the adversary.
        norm: Its norm.
        budget: Name of the full budget.
        images: Number of images for the choice, and for the report.
        notes: Remarks for the reader.
    """

    candidates: tuple[Candidate, ...]
    cost: RejectionLoss
    eps: float
    norm: str
    budget: str
    images: tuple[int, int]
    notes: tuple[str, ...] = ()

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
        assert first is not None
        assert second is not None
        return paired_loss(first, second, self.cost)

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
