"""Risk and coverage of rules that rank inputs by a score, on clean inputs and under attack."""

from __future__ import annotations

import torch
from torch import Tensor

from cpr_wrap.engine.memory import is_out_of_memory
from cpr_wrap.metrics import Coverage, RiskCoverage, RobustnessCurve, risk_coverage
from cpr_wrap.selective import SelectiveClassifier, network_device


def risk_coverages(
    model: SelectiveClassifier, curve: RobustnessCurve, *, batch_size: int = 256
) -> dict[str, RiskCoverage]:
    """Selective risk as a function of coverage, on clean images and under attack.

    Args:
        model: The selective classifier.
        curve: Its curve, with points.
        batch_size: Images per batch.

    Returns:
        Two curves: `clean` for the images themselves; `attacked` with every image replaced by the
        accepted mistake that was found for it, if any.
    """
    if curve.points is None:
        raise ValueError("expected a curve with its points, got one without")
    label = curve.records.label
    answers = {}
    for name, x in (("clean", curve.points.clean), ("attacked", curve.points.outer)):
        score, predicted = _ask(model, x, batch_size)
        answers[name] = risk_coverage(score, predicted == label)
    return answers


def _ask(model: SelectiveClassifier, x: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    device = network_device(model.base, x.device)
    try:
        parts = [model.judge(part.to(device)) for part in x.split(batch_size)]
    except (RuntimeError, MemoryError) as error:
        if batch_size == 1 or not is_out_of_memory(error):
            raise
        return _ask(model, x, batch_size // 2)
    score = torch.cat([part.score for part in parts]).cpu()
    return score, torch.cat([part.predicted for part in parts]).cpu()


def coverage_of(model: SelectiveClassifier, curve: RobustnessCurve) -> Coverage | None:
    """AURC and AUGRC for rules with a free score; None for the others."""
    if model.rule.cost.total > 1 or not model.rule.can_reject:
        return None
    found = risk_coverages(model, curve)
    return Coverage(
        clean_aurc=found["clean"].aurc,
        clean_augrc=found["clean"].augrc,
        attacked_aurc=found["attacked"].aurc,
        attacked_augrc=found["attacked"].augrc,
    )
