"""Training of robust networks: a loss per method, one loop for all, recipes as settings."""

from cpr_wrap.training.loop import TrainingResult as TrainingResult
from cpr_wrap.training.loop import train as train
from cpr_wrap.training.method import METHODS as METHODS
from cpr_wrap.training.method import AdversarialMethod as AdversarialMethod
from cpr_wrap.training.method import Losses as Losses
from cpr_wrap.training.method import Method as Method
from cpr_wrap.training.method import register_method as register_method
from cpr_wrap.training.methods import AT as AT
from cpr_wrap.training.methods import ATRR as ATRR
from cpr_wrap.training.methods import CCAT as CCAT
from cpr_wrap.training.methods import IBP as IBP
from cpr_wrap.training.methods import MART as MART
from cpr_wrap.training.methods import RCD as RCD
from cpr_wrap.training.methods import TRADES as TRADES
from cpr_wrap.training.methods import FastAT as FastAT
from cpr_wrap.training.methods import StandardTraining as StandardTraining
from cpr_wrap.training.recipes import RECIPES as RECIPES
from cpr_wrap.training.recipes import Recipe as Recipe
