"""What does it cost when your classifier may say "I don't know", and someone is attacking it?

Public names are imported on first use, so `import cpr_wrap` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpr_wrap.attacks.adaptive import ATTACKS
    from cpr_wrap.attacks.ensemble import BUDGETS
    from cpr_wrap.calibration import Calibration, calibrate
    from cpr_wrap.data import load_data, load_folder
    from cpr_wrap.diagnose import input_gradient_report
    from cpr_wrap.evaluation import (
        advise,
        audit,
        certify,
        estimate_cost,
        load_result,
        merge_results,
        results,
        robustness_curve,
        save_result,
        verify_result,
    )
    from cpr_wrap.geometry import THREATS, ThreatModel
    from cpr_wrap.metrics import RampLoss, RobustnessCurve, StepLoss, TableLoss
    from cpr_wrap.rule import RejectionRule, register_rule
    from cpr_wrap.rules import (
        RULES,
        AcceptAll,
        Confidence,
        Consistency,
        CPRWrapper,
        RectifiedConfidence,
        RejectClass,
        Verified,
    )
    from cpr_wrap.selective import REJECT, Selection, SelectiveClassifier
    from cpr_wrap.zoo import ZOOS, Normalize, load, load_network

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

__all__ = [
    "ATTACKS",
    "BUDGETS",
    "REJECT",
    "RULES",
    "THREATS",
    "ZOOS",
    "AcceptAll",
    "CPRWrapper",
    "Calibration",
    "Confidence",
    "Consistency",
    "Normalize",
    "RampLoss",
    "RectifiedConfidence",
    "RejectClass",
    "RejectionRule",
    "RobustnessCurve",
    "Selection",
    "SelectiveClassifier",
    "StepLoss",
    "TableLoss",
    "ThreatModel",
    "Verified",
    "advise",
    "audit",
    "calibrate",
    "certify",
    "estimate_cost",
    "input_gradient_report",
    "load",
    "load_data",
    "load_folder",
    "load_network",
    "load_result",
    "merge_results",
    "register_rule",
    "results",
    "robustness_curve",
    "save_result",
    "verify_result",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cpr_wrap' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
