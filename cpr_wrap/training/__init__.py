"""Training of robust networks: a loss per method, one loop for all, recipes as settings."""

from __future__ import annotations

from cpr_wrap.training.loop import TrainingResult, train
from cpr_wrap.training.method import METHODS, AdversarialMethod, Losses, Method, register_method
from cpr_wrap.training.methods import (
    AT,
    ATRR,
    CCAT,
    IBP,
    MART,
    RCD,
    TRADES,
    FastAT,
    StandardTraining,
)
from cpr_wrap.training.recipes import RECIPES, Recipe

__all__ = [
    "AT",
    "ATRR",
    "CCAT",
    "IBP",
    "MART",
    "METHODS",
    "RCD",
    "RECIPES",
    "TRADES",
    "AdversarialMethod",
    "FastAT",
    "Losses",
    "Method",
    "Recipe",
    "StandardTraining",
    "TrainingResult",
    "register_method",
    "train",
]
