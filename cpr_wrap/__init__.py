"""What does it cost when your classifier may say "I don't know", and someone is attacking it?

Public names are imported on first use, so `import cpr_wrap` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpr_wrap.attacks.adaptive import ATTACKS as ATTACKS
    from cpr_wrap.attacks.ensemble import BUDGETS as BUDGETS
    from cpr_wrap.calibration import Calibration as Calibration
    from cpr_wrap.calibration import calibrate as calibrate
    from cpr_wrap.data import load_data as load_data
    from cpr_wrap.data import load_folder as load_folder
    from cpr_wrap.diagnose import input_gradient_report as input_gradient_report
    from cpr_wrap.evaluation import advise as advise
    from cpr_wrap.evaluation import audit as audit
    from cpr_wrap.evaluation import certify as certify
    from cpr_wrap.evaluation import estimate_cost as estimate_cost
    from cpr_wrap.evaluation import load_result as load_result
    from cpr_wrap.evaluation import merge_results as merge_results
    from cpr_wrap.evaluation import results as results
    from cpr_wrap.evaluation import robustness_curve as robustness_curve
    from cpr_wrap.evaluation import save_result as save_result
    from cpr_wrap.evaluation import verify_result as verify_result
    from cpr_wrap.geometry import THREATS as THREATS
    from cpr_wrap.geometry import ThreatModel as ThreatModel
    from cpr_wrap.metrics import RampLoss as RampLoss
    from cpr_wrap.metrics import RobustnessCurve as RobustnessCurve
    from cpr_wrap.metrics import StepLoss as StepLoss
    from cpr_wrap.metrics import TableLoss as TableLoss
    from cpr_wrap.rule import RejectionRule as RejectionRule
    from cpr_wrap.rule import register_rule as register_rule
    from cpr_wrap.rules import RULES as RULES
    from cpr_wrap.rules import AcceptAll as AcceptAll
    from cpr_wrap.rules import Confidence as Confidence
    from cpr_wrap.rules import Consistency as Consistency
    from cpr_wrap.rules import CPRWrapper as CPRWrapper
    from cpr_wrap.rules import RectifiedConfidence as RectifiedConfidence
    from cpr_wrap.rules import RejectClass as RejectClass
    from cpr_wrap.rules import Verified as Verified
    from cpr_wrap.selective import REJECT as REJECT
    from cpr_wrap.selective import Selection as Selection
    from cpr_wrap.selective import SelectiveClassifier as SelectiveClassifier
    from cpr_wrap.zoo import ZOOS as ZOOS
    from cpr_wrap.zoo import Normalize as Normalize
    from cpr_wrap.zoo import load as load
    from cpr_wrap.zoo import load_network as load_network

__version__ = "0.1.0"

_HOMES = {
    "attacks.adaptive": "ATTACKS",
    "attacks.ensemble": "BUDGETS",
    "calibration": "Calibration calibrate",
    "data": "load_data load_folder",
    "diagnose": "input_gradient_report",
    "evaluation": "advise audit certify estimate_cost load_result "
    "merge_results results robustness_curve save_result verify_result",
    "geometry": "THREATS ThreatModel",
    "metrics": "RampLoss RobustnessCurve StepLoss TableLoss",
    "rule": "RejectionRule register_rule",
    "rules": "RULES AcceptAll CPRWrapper Confidence "
    "Consistency RectifiedConfidence RejectClass Verified",
    "selective": "REJECT Selection SelectiveClassifier",
    "zoo": "Normalize ZOOS load load_network",
}
_HOME_OF = {name: f"cpr_wrap.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cpr_wrap' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
