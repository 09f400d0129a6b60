"""Judges what attacks propose, and makes curves of what holds."""

from cpr_wrap.evaluation.audit import Check, audit
from cpr_wrap.evaluation.coverage import risk_coverages
from cpr_wrap.evaluation.curve import robustness_curve
from cpr_wrap.evaluation.estimate import Estimate, estimate_cost
from cpr_wrap.evaluation.progress import Status
from cpr_wrap.evaluation.result import load_result, save_result
from cpr_wrap.evaluation.verify import Verification, verify_curve, verify_result

__all__ = [
    "Check",
    "Estimate",
    "Status",
    "Verification",
    "audit",
    "estimate_cost",
    "load_result",
    "risk_coverages",
    "robustness_curve",
    "save_result",
    "verify_curve",
    "verify_result",
]
