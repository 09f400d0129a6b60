"""Rejection rules, one file each: the rule and the objectives that adapt to it."""

from cpr_wrap.rule import RULES as RULES
from cpr_wrap.rules.atrr import RectifiedConfidence as RectifiedConfidence
from cpr_wrap.rules.confidence import AcceptAll as AcceptAll
from cpr_wrap.rules.confidence import Confidence as Confidence
from cpr_wrap.rules.cpr import Consistency as Consistency
from cpr_wrap.rules.cpr import CPRWrapper as CPRWrapper
from cpr_wrap.rules.rcd import RejectClass as RejectClass
from cpr_wrap.rules.verified import Verified as Verified
