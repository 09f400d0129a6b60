"""What the study runs: methods, images, budgets, in the order in which they are run."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cpr_wrap import SelectiveClassifier, calibrate, load, load_data, load_network
from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.attacks.ensemble import BUDGETS, Budget, backtracking
from cpr_wrap.data import ImageData
from cpr_wrap.objective import Goal, confident_mistake
from cpr_wrap.rule import RejectionRule
from cpr_wrap.rules.confidence import low_confidence
from cpr_wrap.rules.cpr import consistent_mistake, disagreement, low_confidence_twice
from examples.study import paper
from examples.study.before import Before

CPR = {"rule": "cpr", "radius": paper.RADIUS, "steps": paper.STEPS, "step_size": paper.STEP_SIZE}
VARIANT = {**CPR, "smooth": True}
SMALL_CPR = {
    "rule": "cpr",
    "radius": paper.CIFAR10_RADIUS,
    "steps": paper.CIFAR10_STEPS,
    "step_size": paper.CIFAR10_STEP_SIZE,
}
NONE = {"rule": "none"}
CONFIDENCE = {"rule": "confidence"}


@dataclass(frozen=True)
class Method:
    """A network with a rule.

    Attributes:
        name: What to call it.
        network: Name of the bundled model.
        rule: Settings of the rule; empty for the one that the model comes with.
        reject_rate: Calibrate the rule to this share of the right answers, if given.
    """

    name: str
    network: str
    rule: dict[str, Any] = field(default_factory=dict)
    reject_rate: float | None = None

    @property
    def dataset(self) -> str:
        """The data set that the network was trained on."""
        return self.network.partition("-")[0]

    def model(self) -> SelectiveClassifier:
        """Load it, in the memory format that processors are faster with."""
        model = load(f"bundled:{self.network}", **self.rule)
        model.base.to(memory_format=torch.channels_last)
        if self.reject_rate is None:
            return model
        held = images(self.dataset, "validation", 0, None)
        return calibrate(model, held.images, held.labels, self.reject_rate).model

    @property
    def trained_eps(self) -> float | None:
        """The budget that the network was trained for."""
        return load_network(f"bundled:{self.network}").source.get("eps")


@functools.cache
def images(dataset: str, part: str, start: int, num: int | None) -> ImageData:
    """Images of a part of a data set."""
    more = {"start": start, "num": num} if num is not None else {}
    return load_data(dataset, part, **more)


@dataclass(frozen=True)
class Alone:
    """A budget of one attack.

    Attributes:
        name: The name in results.
        attack: The attack.
    """

    name: str
    attack: Attack

    def stages(self, rule: RejectionRule, eps: float) -> tuple[Attack, ...]:
        """The attack and nothing else."""
        del rule, eps
        return (self.attack,)


@dataclass(frozen=True)
class Cell:
    """One evaluation of the study.

    Attributes:
        stage: The part of the study that it belongs to.
        method: The model.
        eps: Budget of the adversary.
        start: The first test image.
        num: How many test images.
        budget: Attacks.
        audited: Whether the result is audited.
        certified: Whether what can be proven is proven.
    """

    stage: str
    method: Method
    eps: float
    start: int
    num: int
    budget: Budget
    audited: bool = False
    certified: bool = False

    @property
    def name(self) -> str:
        """Name of the result's folder: method, budget of the adversary and, apart, the attacks."""
        method = self.method.name.lower().replace("+", "-").replace(" ", "-")
        where = f"{self.eps:g}" if self.method.dataset == "mnist" else f"{self.eps * 255:g}-255"
        attacks = "" if self.stage in ("main", "cifar10", "radius") else f"-{self.budget.name}"
        return f"{method}-{where}{attacks}"


AT, TRADES = "mnist-compact-at", "mnist-compact-trades"
RATE = paper.REJECT_RATE
AT_CPR, TRADES_CPR = Method("AT+CPR", AT, CPR), Method("TRADES+CPR", TRADES, CPR)
CCAT = Method("CCAT", "mnist-compact-ccat")
VERIFIED = Method("verified", "mnist-compact-ibp")
MAIN = (
    AT_CPR,
    TRADES_CPR,
    CCAT,
    VERIFIED,
    Method("AT+CPR-variant", AT, VARIANT),
    Method("AT+CR", AT, CONFIDENCE, RATE),
    Method("TRADES+CR", TRADES, CONFIDENCE, RATE),
    Method("RCD", "mnist-compact-rcd"),
    Method("ATRR", "mnist-compact-atrr"),
    Method("AT", AT, NONE),
    Method("TRADES", TRADES, NONE),
)
SEEN, UNSEEN = paper.EPS[paper.SEEN], paper.EPS[paper.UNSEEN]
FIRST, COUNT, FEW, FORMER = 200, 300, 50, 100
CIFAR_AT, CIFAR_RATE, CIFAR_COUNT = "cifar10-compact-at", paper.CIFAR10_REJECT_RATE, 200
CIFAR = (
    Method("AT+CPR", CIFAR_AT, SMALL_CPR),
    Method("AT+CPR-calibrated", CIFAR_AT, {**SMALL_CPR, "step_size": None}, CIFAR_RATE),
    Method("AT+CR", CIFAR_AT, CONFIDENCE, CIFAR_RATE),
    Method("AT", CIFAR_AT, NONE),
)


def cells() -> Iterator[Cell]:
    """Everything, the most important first."""
    standard, thorough = BUDGETS["standard"], BUDGETS["thorough"]
    for method in MAIN:
        for eps in (UNSEEN, SEEN):
            main = Cell("main", method, eps, FIRST, COUNT, standard, audited=True)
            yield replace(main, certified=method is VERIFIED)
    for method in (AT_CPR, CCAT):
        for eps in (UNSEEN, SEEN):
            yield Cell("former", method, eps, FIRST, FORMER, Before())
    for method in MAIN:
        for eps in (UNSEEN, SEEN):
            yield Cell("thorough", method, eps, FIRST, FEW, thorough)
    for method in CIFAR:
        for eps in paper.CIFAR10_EPS.values():
            yield Cell("cifar10", method, eps, FIRST, CIFAR_COUNT, standard)
    for radius in paper.RADII:
        yield _radius(f"radius {radius:g}", radius=radius, steps=max(20, round(200 * radius)))
    for steps in paper.STEP_COUNTS:
        yield _radius(f"{steps} steps", steps=steps)
    for attack in attacks_alone():
        yield Cell("attacks", AT_CPR, SEEN, FIRST, FORMER, attack)
    for eps in (UNSEEN, SEEN):
        hcmoa = _outer("HCMOA", confident_mistake, 200, starts=tuple(range(6)), targets=None)
        for budget in (hcmoa, Alone("PGD-backtracking", backtracking(eps, steps=200))):
            yield Cell("ccat", CCAT, eps, FIRST, FORMER, budget)


def _radius(name: str, **changes: Any) -> Cell:
    method = Method(name, AT, {**CPR, **changes})
    return Cell("radius", method, UNSEEN, FIRST, FEW, BUDGETS["standard"])


def _outer(name: str, objective: Any, steps: int, **more: Any) -> Alone:
    goal = Goal.ACCEPTED_MISTAKE
    attack = Attack(objective=objective, goal=goal, steps=steps, step=1 / 3, momentum=0.9, **more)
    return Alone(name, attack)


def attacks_alone() -> Iterator[Alone]:
    """The paper's attacks on CPR, each alone, with equal steps and starts."""
    yield _outer("HCMOA", confident_mistake, 40, starts=(0, 1))
    yield _outer("CHCMOA", consistent_mistake, 40, starts=(0, 1))
    for name, objective in (
        ("LCIA", low_confidence),
        ("CLCIA", low_confidence_twice),
        ("PDIA", disagreement),
    ):
        attack = Attack(
            objective=objective,
            goal=Goal.REJECTED,
            steps=40,
            step=1 / 3,
            momentum=0.9,
            starts=(0, 1),
        )
        yield Alone(name, attack)
