"""Evaluations: robustness curves, certificates, audits, results and advice."""

from cpr_wrap.engine.progress import Status
from cpr_wrap.evaluation.advice import Advice, Candidate
from cpr_wrap.evaluation.advising import advise
from cpr_wrap.evaluation.assemble import risk_coverages
from cpr_wrap.evaluation.auditing import audit
from cpr_wrap.evaluation.certifying import certify
from cpr_wrap.evaluation.curve import robustness_curve
from cpr_wrap.evaluation.merge import merge_results
from cpr_wrap.evaluation.result import Results, load_result, results, save_result
from cpr_wrap.evaluation.sweep import Estimate, estimate_cost
from cpr_wrap.evaluation.verify import Verification, load_recorded, verify_curve, verify_result
from cpr_wrap.metrics import Check

__all__ = [
    "Advice",
    "Candidate",
    "Check",
    "Estimate",
    "Results",
    "Status",
    "Verification",
    "advise",
    "audit",
    "certify",
    "estimate_cost",
    "load_recorded",
    "load_result",
    "merge_results",
    "results",
    "risk_coverages",
    "robustness_curve",
    "save_result",
    "verify_curve",
    "verify_result",
]
