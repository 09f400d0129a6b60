"""Models, images and runs for the tests of AutoAttack."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack

from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.rules import AcceptAll, Confidence, CPRWrapper, RectifiedConfidence, RejectClass
from cpr_wrap.selective import REJECT, SelectiveClassifier
from tests.toys import Curved, pixels

CLASSES = 5
both_ways = pytest.mark.parametrize("way", [AutoAttackOnBase, AdaptiveAutoAttack])
RULES = {
    "confidence": Confidence(threshold=0.8),
    "rcd": RejectClass(),
    "atrr": RectifiedConfidence(threshold=0.4),
    "none": AcceptAll(),
}


def curved(rule="confidence", classes=CLASSES):
    if rule == "cpr":
        return CPRWrapper(Curved(classes), radius=0.05, steps=3, step_size=0.02)
    chosen = RULES[rule]
    return SelectiveClassifier(Curved(classes + chosen.extra_outputs), chosen)


def images(model, count=10):
    """Images and the classes that the network gives them."""
    x = pixels(count)
    return x, model.logits(x).argmax(dim=1)


def run(attack, model, x, y, eps=0.2, *, norm="Linf", seed=0, index=None):
    index = torch.arange(len(x)) if index is None else index
    return attack.perturb(model, x, y, eps, norm=norm, seed=seed, index=index)


def broken(model, points, y):
    labels = model.predict(points.clamp(0, 1))
    return (labels != REJECT) & (labels != y)


class FromGit(ModuleType):
    """The package `autoattack`, as far as its signature goes; its attacks are pyautoattack's."""

    def __init__(self) -> None:
        super().__init__("autoattack")
        self.made = []

    def AutoAttack(
        self,
        model,
        norm="Linf",
        eps=0.3,
        seed=None,
        verbose=True,
        attacks_to_run=[],  # noqa: B006
        version="standard",
        is_tf_model=False,
        device="cuda",
        log_path=None,
    ):
        whole = ModuleType("adversary")
        settings = {"eps": eps, "norm": norm, "seed": seed, "device": device}
        whole.apgd = APGDAttack(model, n_restarts=5, n_iter=100, **settings)
        whole.apgd_targeted = APGDAttack_targeted(model, n_restarts=1, n_iter=100, **settings)
        whole.fab = FABAttack_PT(model, n_restarts=5, n_iter=100, **settings)
        whole.square = SquareAttack(model, n_queries=5000, resc_schedule=False, **settings)
        assert version == "standard"
        whole.apgd.n_restarts = whole.fab.n_restarts = 1
        print(f"setting parameters for {version} version")
        self.made.append({"version": version, "attacks_to_run": attacks_to_run, **settings})
        return whole
