"""Attacks: they propose perturbed inputs, which the engine judges."""

from cpr_wrap.attacks.adaptive import KNOWN, Attack, Halving, Proposer, Stage

__all__ = ["KNOWN", "Attack", "Halving", "Proposer", "Stage"]
