"""Ways to propose perturbed inputs."""

from cpr_wrap.attacks.adaptive import KNOWN, Attack, Halving, Proposer, Stage

__all__ = ["KNOWN", "Attack", "Halving", "Proposer", "Stage"]
