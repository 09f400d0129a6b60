"""Risk and coverage of rules that rank inputs by a score, on clean inputs and under attack."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cpr_wrap.evaluation.batch import is_out_of_memory
from cpr_wrap.metrics import RiskCoverage, RobustnessCurve, risk_coverage
from cpr_wrap.selective import SelectiveClassifier


def risk_coverages(
    model: SelectiveClassifier, curve: RobustnessCurve, *, batch_size: int = 256
) -> dict[str, RiskCoverage]:
    """What share of answers is wrong, over the share of inputs answered.

    Args:
        model: The selective classifier.
        curve: Its curve, with points.
        batch_size: Images asked about at once.

    Returns:
        `clean`: the images as they are. `attacked`: every image that an accepted mistake was
        found for is replaced by it, which is what the adversary would send.
    """
    points = curve.details["points"]
    label = curve.records.label
    answers = {}
    for name, x in (("clean", points["clean"]), ("attacked", points["outer"])):
        score, predicted = _ask(model, x, batch_size)
        answers[name] = risk_coverage(score, predicted == label)
    return answers


def _ask(model: SelectiveClassifier, x: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    device = next((p.device for p in model.base.parameters()), x.device)
    try:
        parts = [model.judge(part.to(device)) for part in x.split(batch_size)]
    except (RuntimeError, MemoryError) as error:
        if batch_size == 1 or not is_out_of_memory(error):
            raise
        return _ask(model, x, batch_size // 2)
    score = torch.cat([part.score for part in parts]).cpu()
    return score, torch.cat([part.predicted for part in parts]).cpu()


def coverage_summary(model: SelectiveClassifier, curve: RobustnessCurve) -> dict[str, Any] | None:
    """AURC and AUGRC as plain data for rules with a cheap score; None for the others."""
    if model.rule.needs_gradient or not model.rule.can_reject:
        return None
    return {
        name: {"aurc": found.aurc, "augrc": found.augrc}
        for name, found in risk_coverages(model, curve).items()
    }
