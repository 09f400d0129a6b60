"""What does it cost when your classifier may say "I don't know", and someone is attacking it?

The public names are imported when they are first used: `import cpr_wrap` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpr_wrap.calibration import Calibration, calibrate
    from cpr_wrap.data import load_data, load_folder
    from cpr_wrap.diagnose import input_gradient_report
    from cpr_wrap.evaluation import robustness_curve
    from cpr_wrap.metrics import RampLoss, RobustnessCurve, StepLoss
    from cpr_wrap.rules import (
        RULES,
        AcceptAll,
        Confidence,
        Consistency,
        CPRWrapper,
        RectifiedConfidence,
        RejectClass,
    )
    from cpr_wrap.selective import REJECT, Selection, SelectiveClassifier
    from cpr_wrap.zoo import Normalize, load, load_network

__version__ = "0.1.0"

_HOMES = {
    "cpr_wrap.calibration": ("Calibration", "calibrate"),
    "cpr_wrap.data": ("load_data", "load_folder"),
    "cpr_wrap.diagnose": ("input_gradient_report",),
    "cpr_wrap.evaluation": ("robustness_curve",),
    "cpr_wrap.metrics": ("RampLoss", "RobustnessCurve", "StepLoss"),
    "cpr_wrap.rules": (
        "RULES",  # from here, because importing the rules fills it
        "AcceptAll",
        "CPRWrapper",
        "Confidence",
        "Consistency",
        "RectifiedConfidence",
        "RejectClass",
    ),
    "cpr_wrap.selective": ("REJECT", "Selection", "SelectiveClassifier"),
    "cpr_wrap.zoo": ("Normalize", "load", "load_network"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "REJECT",
    "RULES",
    "AcceptAll",
    "CPRWrapper",
    "Calibration",
    "Confidence",
    "Consistency",
    "Normalize",
    "RampLoss",
    "RectifiedConfidence",
    "RejectClass",
    "RobustnessCurve",
    "Selection",
    "SelectiveClassifier",
    "StepLoss",
    "calibrate",
    "input_gradient_report",
    "load",
    "load_data",
    "load_folder",
    "load_network",
    "robustness_curve",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cpr_wrap' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
