"""Rejection rules, one file each: the rule and the objectives that adapt to it."""

from cpr_wrap.rules.atrr import RectifiedConfidence
from cpr_wrap.rules.confidence import AcceptAll, Confidence
from cpr_wrap.rules.cpr import Consistency, CPRWrapper
from cpr_wrap.rules.rcd import RejectClass
from cpr_wrap.rules.verified import Verified
from cpr_wrap.selective import RULES

__all__ = [
    "RULES",
    "AcceptAll",
    "CPRWrapper",
    "Confidence",
    "Consistency",
    "RectifiedConfidence",
    "RejectClass",
    "Verified",
]
