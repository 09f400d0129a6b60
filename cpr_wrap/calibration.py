"""Calibration: set a rule so that it rejects a given share of the correctly classified images.

The share is of the *correctly classified* validation images, as in the paper. A record holds what
was measured, with an interval for the true rate.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cpr_wrap._checks import check_count, check_images, check_labels, check_positive, check_share
from cpr_wrap.data.images import gather
from cpr_wrap.geometry import threat
from cpr_wrap.metrics.evidence import CalibrationFacts
from cpr_wrap.metrics.intervals import Interval, clopper_pearson
from cpr_wrap.rule import BySearch, RejectionRule, Unchanged, rule_config
from cpr_wrap.selective import Selection, SelectiveClassifier
from cpr_wrap.solver import BLIND

# Bisecting a setting: how fine in any case, and how fine where a jump must be resolved, as
# fractions of its largest value.
_COARSE, _FINE = 1e-3, 1e-6
_GRAY = 1 / 255  # a gray level, as a share of the data's range
_ROUNDS = 4  # corrections of the search where rejection turns out not to grow with the setting


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """What a calibration measured, on the validation images and with the rule it returned."""

    before: RejectionRule  #: The rule before calibration.
    after: RejectionRule  #: The calibrated rule.
    reject_rate: float  #: The requested share of correctly classified images to reject.
    measured_rate: float  #: The share that is rejected.
    num_rejected: int  #: How many correctly classified images are rejected.
    num_correct: int  #: How many images are classified correctly.
    num_images: int  #: How many images there are.
    #: Share of all images that are rejected, whether classified correctly or not.
    overall_rate: float
    #: Interval for the rate on new correctly classified images of the same kind. For a quantile of
    #: the score, the upper end is exact and the lower end is conservative, although the same images
    #: chose the threshold. For a searched radius, both hold to within one image.
    interval: Interval
    reached: bool  #: Whether the requested rate was reached, up to a fraction of an image.
    note: str  #: A remark for the reader; may be empty.

    @property
    def facts(self) -> CalibrationFacts:
        """The same as plain data, for results."""
        plain = {name: value for name, value in vars(self).items() if name != "interval"}
        rules = {"before": rule_config(self.before), "after": rule_config(self.after)}
        ends = {"low": self.interval.low, "high": self.interval.high}
        return CalibrationFacts(**{**plain, **rules, **ends})


class Calibration(NamedTuple):
    """A calibrated model and its record: `model, record = calibrate(...)`."""

    model: SelectiveClassifier
    record: CalibrationRecord


def calibrate(
    model: SelectiveClassifier,
    x_val: Tensor | Dataset[Any] | DataLoader[Any],
    y_val: Tensor | None = None,
    reject_rate: float = 0.01,
    *,
    batch_size: int = 256,
    confidence: float = 0.95,
    force: bool = False,
    max_radius: float | None = None,
) -> Calibration:
    """Set a rule so that it rejects a share of the correctly classified validation images.

    For a rule with a score, the threshold becomes a quantile of these images' scores. A rule
    without such a score, like CPR, gets the largest radius that rejects no more than requested.

    Args:
        model: The model to calibrate; it is not modified.
        x_val: Validation images `(N, ...)`, on the model's device, or a data set or loader.
        y_val: Their labels `(N,)`; None for a data set or loader.
        reject_rate: Share of the correctly classified images to reject, between 0 and 1.
        batch_size: Images per batch.
        confidence: Level of the interval for the true rate.
        force: Also calibrate rules that normally keep their setting, e.g. a reject class.
        max_radius: Upper limit of a search; by default the rule's own limit, or the range of
            pixels.

    Returns:
        The model with the new rule, and the record. If the rate is out of reach, the record says
        so, and the rule is the closest one that rejects no more than requested.

    Example:
        >>> import torch
        >>> from cpr_wrap import Confidence, SelectiveClassifier
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
        >>> x = torch.rand(100, 1, 2, 2)
        >>> model = SelectiveClassifier(network, Confidence())
        >>> y = network(x).argmax(dim=1)  # every answer is right
        >>> calibrated, record = calibrate(model, x, y, reject_rate=0.1)
        >>> record.num_rejected, int((calibrated.predict(x) == -1).sum())
        (10, 10)
    """
    if not isinstance(x_val, Tensor):
        x_val, y_val = gather(x_val, y_val)
    check_images(x_val, "x_val")
    if y_val is None:
        raise TypeError("y_val: expected labels for a tensor of images, got None")
    with torch.no_grad():
        num_classes = model.logits(x_val[:1]).shape[1]
    check_labels(y_val, len(x_val), num_classes, name="y_val")
    check_share(reject_rate, "reject_rate")
    check_share(confidence, "confidence")
    check_count(batch_size, "batch_size")
    if max_radius is not None:
        check_positive(max_radius, "max_radius")
    if not model.rule.can_reject:
        raise ValueError(
            f"rule {model.rule.name!r} never rejects, so there is nothing to calibrate; wrap the "
            "network with another rule first, e.g. model.with_rule(cpr_wrap.Consistency())"
        )
    with warnings.catch_warnings(record=True) as told:
        search = _Search(model, x_val, y_val, reject_rate, batch_size, max_radius)
    for each in told:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    how = model.rule.calibrated_by
    if isinstance(how, BySearch):
        rule, accepted, note = search.setting(how)
    elif isinstance(how, Unchanged) and not force:
        rule, accepted = model.rule, search.first.accepted
        note = f"{how.why}; calibrate(..., force=True) moves it"
    else:
        rule, accepted, note = search.threshold()
    notes = [note, BLIND if any(str(each.message) == BLIND for each in told) else ""]
    return Calibration(model.with_rule(rule), search.record(rule, accepted, notes, confidence))


_Found = tuple[RejectionRule, Tensor, str]  # a rule, what it accepts, and a word on the search


class _Search:
    """The validation images, and the ways to find a rule for them."""

    def __init__(
        self,
        model: SelectiveClassifier,
        x: Tensor,
        y: Tensor,
        rate: float,
        batch_size: int,
        most: float | None,
    ) -> None:
        self.model, self.x, self.rate, self.batch_size = model, x, rate, batch_size
        # The first look is at the largest setting: what is accepted there can be left alone later.
        rule, how = model.rule, model.rule.calibrated_by
        if isinstance(how, BySearch):
            self.whole = threat(rule.norm or "Linf").everything(x)
            self.most = min(most or self.whole, how.most or self.whole)
            rule = replace(rule, **{how.setting: self.most})
        self.first = self.ask(rule)
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
        answers = [model(batch) for batch in x.split(self.batch_size)]
        return Selection(*(torch.cat(parts) for parts in zip(*answers, strict=True)))

    def threshold(self) -> _Found:
        """The quantile of the scores, as the published code takes it."""
        scores = self.first.score
        ascending = scores[self.correct].sort().values
        # Accepted from the threshold on: exactly `wanted` scores lie below it, but for ties.
        cut = replace(self.model.rule, threshold=float(ascending[self.wanted]))
        accepted = scores >= cut.threshold
        below = int((~accepted & self.correct).sum())
        if below == self.wanted:
            return cut, accepted, ""
        tied = int((ascending == cut.threshold).sum())
        note = (
            f"{tied} correctly classified images share the score {cut.threshold:g}, and rejecting "
            "them too would reject more than requested"
        )
        return cut, accepted, note

    def setting(self, how: BySearch) -> _Found:
        """The largest setting at which no more than `wanted` right answers are rejected."""
        name, value = how.setting, self.most
        rule = replace(self.model.rule, **{name: value})
        accepted = self.first.accepted
        suspects = self._rejected(accepted)
        if len(suspects) <= self.wanted:
            note = (
                f"even {name} {value:g}, the largest possible, rejects {len(suspects)} of "
                f"{self.num_correct}; {how.advice}"
            )
            return rule, accepted, note if len(suspects) < self.wanted else ""
        for _ in range(_ROUNDS):
            value = self._bisect(name, suspects, value)
            rule = replace(rule, **{name: value})
            accepted = self.ask(rule).accepted
            rejected = self._rejected(accepted)
            if len(rejected) <= self.wanted:
                break
            # An image that only a smaller setting rejects; search again below, with it in view.
            suspects = torch.cat([suspects, rejected]).unique()
        note = ""
        if len(rejected) < self.wanted:
            note = f"just above {name} {value:g} several images are rejected at once"
        if len(rejected) > self.wanted:
            note = f"no {name} tried down to {value:g} rejects as few as requested"
        return rule, accepted, "; ".join(filter(None, [note, self._fragile(rule, how)]))

    def _fragile(self, rule: RejectionRule, how: BySearch) -> str:
        """A word on a radius that is smaller than what rounding to bytes does to an image."""
        half = min(_GRAY / 2 * self.whole, self.most)
        if how.setting != "radius" or rule.reach >= half:
            return ""
        there = len(self._rejected(self.ask(replace(rule, **{how.setting: half})).accepted))
        if there <= self.wanted:
            return ""  # the search stopped at a smaller radius that does as asked
        return (
            f"radius {rule.reach:.2g} is below half a gray level ({half:.2g}), where {rule.name} "
            f"rejects {there} of {self.num_correct} right answers ({there / self.num_correct:.0%})."
            " The network needs robust training before a radius of practical use is possible"
        )

    def _rejected(self, accepted: Tensor) -> Tensor:
        """Rows of the correctly classified images that are rejected `(M,)`."""
        return (~accepted & self.correct).nonzero().squeeze(1)

    def _bisect(self, name: str, suspects: Tensor, high: float) -> float:
        """Close in on the setting at which more than `wanted` suspects are rejected.

        That an image rejected at one value is rejected at every larger one is an assumption: it
        lets each halving look at the undecided images alone. The measurement of all images that
        follows is what counts.
        """
        coarse, fine = _COARSE * self.most, _FINE * self.most
        low, below = 0.0, 0  # at radius 0, T(x) is x and nothing is rejected
        while high - low > (coarse if low > 0 and below == self.wanted else fine):
            middle = (low + high) / 2
            accepted = self.ask(replace(self.model.rule, **{name: middle}), suspects).accepted
            rejected = len(suspects) - int(accepted.sum())
            if below + rejected > self.wanted:
                high, suspects = middle, suspects[~accepted]
            else:
                low, suspects, below = middle, suspects[accepted], below + rejected
        return low or high

    def record(
        self, rule: RejectionRule, accepted: Tensor, notes: list[str], confidence: float
    ) -> CalibrationRecord:
        """Write down what the found rule does on all images."""
        rejected = len(self._rejected(accepted))
        coarse = (
            f"{self.num_correct} correctly classified images cannot resolve a rate of "
            f"{self.rate:g}; it takes {math.ceil(1 / self.rate - 1e-9)}"
        )
        return CalibrationRecord(
            before=self.model.rule,
            after=rule,
            reject_rate=self.rate,
            measured_rate=rejected / self.num_correct,
            num_rejected=rejected,
            num_correct=self.num_correct,
            num_images=len(self.x),
            overall_rate=float((~accepted).double().mean()),
            interval=clopper_pearson(rejected, self.num_correct, confidence),
            reached=rejected == self.wanted > 0,
            note="; ".join(filter(None, [coarse if self.wanted == 0 else "", *notes])),
        )
