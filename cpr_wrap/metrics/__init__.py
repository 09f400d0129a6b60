"""Pure functions of per-image records: curves, total losses, clean figures, theory, intervals."""

from __future__ import annotations

from cpr_wrap.metrics.clean import (
    CleanMetrics,
    RiskCoverage,
    accuracy_with_rejection,
    clean_metrics,
    f1_like,
    rejection_rate,
    risk_coverage,
    robust_accuracy_with_detection,
)
from cpr_wrap.metrics.curve import PAPER_ALPHAS, RobustnessCurve
from cpr_wrap.metrics.intervals import (
    Band,
    Interval,
    bootstrap_band,
    bootstrap_interval,
    bootstrap_means,
    clopper_pearson,
)
from cpr_wrap.metrics.losses import (
    PAPER_LOSSES,
    RampLoss,
    RejectionLoss,
    StepLoss,
    TableLoss,
    as_loss,
    check_loss,
    parse_loss,
)
from cpr_wrap.metrics.records import CLEAN, Records, inward, rounding
from cpr_wrap.metrics.theory import (
    Theorem1Bound,
    Theorem2Curve,
    ideal_rejected_radius,
    theorem1_bound,
    theorem2_curve,
    theorems_of,
)
from cpr_wrap.metrics.total_loss import lemma_total_loss, trapezoid_total_loss

__all__ = [
    "CLEAN",
    "PAPER_ALPHAS",
    "PAPER_LOSSES",
    "Band",
    "CleanMetrics",
    "Interval",
    "RampLoss",
    "Records",
    "RejectionLoss",
    "RiskCoverage",
    "RobustnessCurve",
    "StepLoss",
    "TableLoss",
    "Theorem1Bound",
    "Theorem2Curve",
    "accuracy_with_rejection",
    "as_loss",
    "bootstrap_band",
    "bootstrap_interval",
    "bootstrap_means",
    "check_loss",
    "clean_metrics",
    "clopper_pearson",
    "f1_like",
    "ideal_rejected_radius",
    "inward",
    "lemma_total_loss",
    "parse_loss",
    "rejection_rate",
    "risk_coverage",
    "robust_accuracy_with_detection",
    "rounding",
    "theorem1_bound",
    "theorem2_curve",
    "theorems_of",
    "trapezoid_total_loss",
]
