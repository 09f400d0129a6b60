"""Bounds on a network's outputs over whole balls: interval bounds (IBP) and CROWN."""

from cpr_wrap.bounds.crown import crown_leads
from cpr_wrap.bounds.interval import leads, proven_lead
from cpr_wrap.bounds.proof import Proof, Radii
from cpr_wrap.bounds.tape import UnsupportedLayerError

__all__ = ["Proof", "Radii", "UnsupportedLayerError", "crown_leads", "leads", "proven_lead"]
