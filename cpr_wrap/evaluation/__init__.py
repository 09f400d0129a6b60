"""Evaluations: robustness curves, certificates, audits, results and advice."""

from cpr_wrap.engine.progress import Status as Status
from cpr_wrap.evaluation.advice import Advice as Advice
from cpr_wrap.evaluation.advice import Candidate as Candidate
from cpr_wrap.evaluation.advising import advise as advise
from cpr_wrap.evaluation.assemble import risk_coverages as risk_coverages
from cpr_wrap.evaluation.auditing import audit as audit
from cpr_wrap.evaluation.certifying import certify as certify
from cpr_wrap.evaluation.curve import robustness_curve as robustness_curve
from cpr_wrap.evaluation.merge import merge_results as merge_results
from cpr_wrap.evaluation.result import Results as Results
from cpr_wrap.evaluation.result import load_result as load_result
from cpr_wrap.evaluation.result import results as results
from cpr_wrap.evaluation.result import save_result as save_result
from cpr_wrap.evaluation.sweep import Estimate as Estimate
from cpr_wrap.evaluation.sweep import estimate_cost as estimate_cost
from cpr_wrap.evaluation.verify import Verification as Verification
from cpr_wrap.evaluation.verify import load_recorded as load_recorded
from cpr_wrap.evaluation.verify import verify_curve as verify_curve
from cpr_wrap.evaluation.verify import verify_result as verify_result
from cpr_wrap.metrics import Check as Check
