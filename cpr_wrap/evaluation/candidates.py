"""Which rules and settings are worth trying on a network, and what a verdict of each takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from torch import Tensor

from cpr_wrap.calibration import calibrate
from cpr_wrap.evaluation.timing import timed
from cpr_wrap.rule import RULES, BySearch, RejectionRule, make_rule
from cpr_wrap.rules import AcceptAll, Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier

RADII = (0.1, 0.2, 1 / 3, 0.5, 2 / 3)
"""Consistency radii to try, as shares of eps."""
STEPS = (5, 20)
RATES = (0.01, 0.05)
"""Shares of right answers to reject, for settings that calibration finds."""

_VERIFIED = "verified"
_ROUNDS = 5


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

    Args:
        model: The network under its own rule.
        x: Validation images `(N, ...)` on the model's device.
        y: Their classes `(N,)`.
        eps: Budget of the adversary.
        norm: Its norm.
        radii: Consistency radii; shares of eps, and what calibration finds, by default.
        steps: Numbers of steps of CPR.
        thresholds: Thresholds of confidence; by default what calibration finds.

    Returns:
        The rules, each once, and notes for the reader.
    """
    notes: list[str] = []
    rules: list[RejectionRule] = [AcceptAll()]
    if thresholds is None:
        rules += _calibrated(model.with_rule(Confidence()), x, y, notes)
    else:
        rules += [Confidence(threshold=threshold) for threshold in thresholds]
    for count in steps:
        start = Consistency(radius=eps, steps=count, norm=norm)
        found = list(_calibrated(model.with_rule(start), x, y, notes))
        rules += found if radii is None else []  # their notes are for the reader in any case
        for radius in [share * eps for share in RADII] if radii is None else radii:
            rules.append(Consistency(radius=radius, steps=count, norm=norm))
    rules += _verified(model, x[:1], radii or [share * eps for share in RADII], norm, notes)
    if model.rule not in rules:
        rules.append(model.rule)
    usual = model.rule.extra_outputs
    rules = [rule for rule in rules if rule.extra_outputs == usual]
    return list(dict.fromkeys(rules)), list(dict.fromkeys(notes))


def _calibrated(
    model: SelectiveClassifier, x: Tensor, y: Tensor, notes: list[str]
) -> Iterator[RejectionRule]:
    """A rule set to each rate, the data's range being its only limit."""
    if model.rule.extra_outputs != 0:
        return
    records = [calibrate(model, x, y, rate).record for rate in RATES]
    notes += [record.note for record in records if "gray level" in record.note]
    searched = isinstance(model.rule.calibrated_by, BySearch)
    made = [record for record in records if record.num_rejected or searched]
    if not made:
        notes.append(f"{model.rule.name} is left out: {records[-1].note}")
    yield from (record.after for record in made)


def _verified(
    model: SelectiveClassifier, x: Tensor, radii: Sequence[float], norm: str, notes: list[str]
) -> Iterator[RejectionRule]:
    """Verified consistency, where the rule is there and the network can be bounded."""
    if _VERIFIED not in RULES:
        return
    known = {field.name for field in fields(RULES[_VERIFIED])}
    for radius in radii:
        settings = {"radius": radius, "norm": norm}
        try:
            rule = make_rule(_VERIFIED, {k: v for k, v in settings.items() if k in known})
            model.with_rule(rule)(x)
        except Exception as error:  # whatever a network that cannot be bounded ends in
            notes.append(f"{_VERIFIED} is left out: {' '.join(str(error).split())}")
            return
        yield rule


def rejected_share(model: SelectiveClassifier, x: Tensor, batch_size: int = 256) -> float:
    """Share of images `(N, ...)` that a model rejects."""
    rejected = sum(int((~model(batch).accepted).sum()) for batch in x.split(batch_size))
    return rejected / len(x)


def latency(model: SelectiveClassifier, x: Tensor, rounds: int = _ROUNDS) -> float:
    """Seconds that a prediction of one image takes: the quickest of several after a first one.

    Other work on the machine lengthens that one least.
    """
    times = [timed(lambda: model(x[:1]), x.device)[1].wall for _ in range(rounds + 1)]
    return min(times[1:])
