"""How much may be rejected: set a rule so that it turns away a given share of right answers.

The share is of the *correctly classified* validation images, as in the paper. What was measured,
and how sure a finite number of images can make us of it, comes back in a record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cpr_wrap._checks import check_images, check_labels, check_share
from cpr_wrap.metrics.intervals import Interval, clopper_pearson
from cpr_wrap.rules.cpr import Consistency
from cpr_wrap.rules.rcd import RejectClass
from cpr_wrap.selective import RejectionRule, Selection, SelectiveClassifier

# Bisecting the radius: how fine in any case, and how fine where a jump must be resolved, as
# fractions of the largest radius that T(x) can reach.
_COARSE, _FINE = 1e-3, 1e-6
_ROUNDS = 4  # corrections of the search where rejection turns out not to grow with the radius


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """What a calibration measured, on the validation images and with the rule it returned.

    Attributes:
        before: The rule that came in.
        after: The rule that went out.
        reject_rate: The share of correctly classified images that was asked to be rejected.
        measured_rate: The share that is.
        num_rejected: How many correctly classified images are rejected.
        num_correct: How many images are classified correctly.
        num_images: How many images there are.
        overall_rate: Share of all images that is rejected, right or wrong.
        interval: For the rate on new correctly classified images of the same kind. Of a score's
            quantile the upper end is exact and the lower one conservative, although the same
            images chose the threshold; of a searched radius both hold to within one image.
        reached: Whether as many are rejected as was asked, the fraction of an image aside.
        note: What a reader should know; empty if there is nothing to say.
    """

    before: RejectionRule
    after: RejectionRule
    reject_rate: float
    measured_rate: float
    num_rejected: int
    num_correct: int
    num_images: int
    overall_rate: float
    interval: Interval
    reached: bool
    note: str


class Calibration(NamedTuple):
    """A calibrated model and the record of its calibration."""

    model: SelectiveClassifier
    record: CalibrationRecord


class _Found(NamedTuple):
    """A rule, its verdicts on all images, and a word on how it was found."""

    rule: RejectionRule
    accepted: Tensor
    note: str = ""


def calibrate(
    model: SelectiveClassifier,
    x_val: Tensor,
    y_val: Tensor,
    reject_rate: float,
    *,
    batch_size: int = 256,
    confidence: float = 0.95,
    force: bool = False,
) -> Calibration:
    """Set a rule so that it rejects a share of the correctly classified validation images.

    A score's threshold becomes the quantile of these images' scores. CPR, which has no score to
    cut, gets the largest radius that rejects no more than asked; its steps stay as they are.

    Args:
        model: What to calibrate; it is left as it is.
        x_val: Validation images `(N, ...)`, on the model's device.
        y_val: Their labels `(N,)`.
        reject_rate: Share of the correctly classified images to reject, between 0 and 1.
        batch_size: Images in one batch.
        confidence: Level of the interval for the true rate.
        force: Calibrate a reject class too; without it its threshold stays, as in the paper.

    Returns:
        The model under the new rule, and the record. Where the rate is out of reach, the record
        says so and the rule is the nearest one that rejects no more than asked.
    """
    check_images(x_val, "x_val")
    check_labels(y_val, len(x_val), name="y_val")
    check_share(reject_rate, "reject_rate")
    check_share(confidence, "confidence")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    if not model.rule.can_reject:
        raise ValueError(
            f"rule {model.rule.name!r} never rejects, so there is nothing to calibrate; wrap the "
            "network with another rule first, e.g. model.with_rule(cpr_wrap.Consistency())"
        )
    search = _Search(model, x_val, y_val, reject_rate, batch_size)
    if isinstance(model.rule, Consistency):
        found = search.radius(model.rule)
    elif isinstance(model.rule, RejectClass) and not force:
        found = search.unchanged(model.rule)
    else:
        found = search.threshold(model.rule)
    return Calibration(model.with_rule(found.rule), search.record(found, reject_rate, confidence))


def _reach(rule: Consistency) -> float:
    """The largest radius that has an effect."""
    return rule.steps * rule.step_size


class _Search:
    """The validation images, and the ways to find a rule for them."""

    def __init__(
        self, model: SelectiveClassifier, x: Tensor, y: Tensor, rate: float, batch_size: int
    ) -> None:
        self.model = model
        self.x = x
        self.batch_size = batch_size
        with torch.no_grad():
            num_classes = model.logits(x[:1]).shape[1]
        check_labels(y, len(x), num_classes, name="y_val")
        # CPR's first look is at the largest radius: what it accepts there can be left alone later.
        rule = model.rule
        widest = replace(rule, radius=_reach(rule)) if isinstance(rule, Consistency) else rule
        self.first = self.ask(widest)
        self.correct = self.first.predicted == y.to(x.device)
        self.num_correct = int(self.correct.sum())
        if self.num_correct == 0:
            raise ValueError(
                f"none of the {len(x)} validation images is classified correctly, and the rate is "
                "a share of those; check that y_val are the network's classes"
            )
        # The nudge: 100 * 0.29 is 29, whatever float multiplication says.
        self.wanted = math.floor(self.num_correct * rate + 1e-9)

    def ask(self, rule: RejectionRule, rows: Tensor | None = None) -> Selection:
        """Answers of the model under a rule, for all images or for some rows `(M,)`."""
        x = self.x if rows is None else self.x[rows]
        model = self.model.with_rule(rule)
        answers: list[Selection] = [model(batch) for batch in x.split(self.batch_size)]
        return Selection(
            torch.cat([answer.logits for answer in answers]),
            torch.cat([answer.accepted for answer in answers]),
            torch.cat([answer.score for answer in answers]),
        )

    def threshold(self, rule: RejectionRule) -> _Found:
        """The quantile of the scores, as the published code takes it."""
        scores = self.first.score
        ascending = scores[self.correct].sort().values
        # Accepted from the threshold on: exactly `wanted` scores lie below it, but for ties.
        cut = replace(rule, threshold=float(ascending[self.wanted]))
        accepted = scores >= cut.threshold
        below = int((~accepted & self.correct).sum())
        if below == self.wanted:
            return _Found(cut, accepted)
        tied = int((ascending == cut.threshold).sum())
        note = (
            f"{tied} correctly classified images share the score {cut.threshold:g}, and rejecting "
            "them too would reject more than asked"
        )
        return _Found(cut, accepted, note)

    def unchanged(self, rule: RejectionRule) -> _Found:
        """A reject class wins or loses; its threshold is not searched."""
        note = (
            f"the reject class decides, the threshold stays at {rule.threshold:g}; "
            "calibrate(..., force=True) moves it"
        )
        return _Found(rule, self.first.accepted, note)

    def radius(self, rule: Consistency) -> _Found:
        """The largest radius at which no more than `wanted` right answers are rejected."""
        radius = _reach(rule)
        accepted = self.first.accepted
        suspects = self._rejected(accepted)
        if len(suspects) <= self.wanted:
            note = (
                f"even radius {radius:g}, all that {rule.steps} steps of {rule.step_size:g} can "
                f"cover, rejects {len(suspects)} of {self.num_correct}; raise steps or step_size"
            )
            short = len(suspects) < self.wanted
            return _Found(replace(rule, radius=radius), accepted, note if short else "")
        for _ in range(_ROUNDS):
            radius = self._bisect(rule, suspects, radius)
            accepted = self.ask(replace(rule, radius=radius)).accepted
            rejected = self._rejected(accepted)
            if len(rejected) <= self.wanted:
                break
            # An image that only a smaller radius rejects; search again below, with it in view.
            suspects = torch.cat([suspects, rejected]).unique()
        note = ""
        if len(rejected) < self.wanted:
            note = f"just above radius {radius:g} several images are rejected at once"
        if len(rejected) > self.wanted:
            note = f"no radius tried down to {radius:g} rejects as few as asked"
        return _Found(replace(rule, radius=radius), accepted, note)

    def _rejected(self, accepted: Tensor) -> Tensor:
        """Rows of the correctly classified images that are rejected `(M,)`."""
        return (~accepted & self.correct).nonzero().squeeze(1)

    def _bisect(self, rule: Consistency, suspects: Tensor, high: float) -> float:
        """Close in on the radius at which more than `wanted` suspects are rejected.

        That an image rejected at one radius is rejected at every larger one is an assumption: it
        lets each halving look at the undecided images alone. The measurement of all images that
        follows is what counts.
        """
        coarse, fine = _COARSE * _reach(rule), _FINE * _reach(rule)
        low, below = 0.0, 0  # at radius 0, T(x) is x and nothing is rejected
        while high - low > (coarse if low > 0 and below == self.wanted else fine):
            middle = (low + high) / 2
            accepted = self.ask(replace(rule, radius=middle), suspects).accepted
            rejected = len(suspects) - int(accepted.sum())
            if below + rejected > self.wanted:
                high, suspects = middle, suspects[~accepted]
            else:
                low, suspects, below = middle, suspects[accepted], below + rejected
        return low or high

    def record(self, found: _Found, rate: float, confidence: float) -> CalibrationRecord:
        """Write down what the found rule does on all images."""
        rejected = len(self._rejected(found.accepted))
        note = found.note
        if self.wanted == 0:
            least = math.ceil(1 / rate - 1e-9)
            few = (
                f"{self.num_correct} correctly classified images cannot resolve a rate of "
                f"{rate:g}; it takes {least}"
            )
            note = f"{few}; {note}" if note else few
        return CalibrationRecord(
            before=self.model.rule,
            after=found.rule,
            reject_rate=rate,
            measured_rate=rejected / self.num_correct,
            num_rejected=rejected,
            num_correct=self.num_correct,
            num_images=len(self.x),
            overall_rate=float((~found.accepted).double().mean()),
            interval=clopper_pearson(rejected, self.num_correct, confidence),
            reached=rejected == self.wanted > 0,
            note=note,
        )
