"""Training of robust networks: one file per method, one loop for all, recipes as settings."""

from __future__ import annotations

from cpr_wrap.training.at import AT, FastAT, StandardTraining
from cpr_wrap.training.atrr import ATRR
from cpr_wrap.training.ccat import CCAT
from cpr_wrap.training.ibp import IBP
from cpr_wrap.training.loop import train
from cpr_wrap.training.mart import MART
from cpr_wrap.training.method import METHODS, AdversarialMethod, Losses, Method, register_method
from cpr_wrap.training.rcd import RCD
from cpr_wrap.training.recipes import RECIPES, Recipe
from cpr_wrap.training.trades import TRADES
from cpr_wrap.training.trainer import TrainingResult

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
