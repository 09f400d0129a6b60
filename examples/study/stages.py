"""The stages of the study as lists of tasks. Each stands alone and passes over missing networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from cpr_wrap.rules import (
    AcceptAll,
    Confidence,
    Consistency,
    RectifiedConfidence,
    RejectClass,
)
from cpr_wrap.selective import RejectionRule
from study import paper
from study.evaluate import Bench, Task
from study.materials import NATURAL
from study.options import Options
from study.plans import Rejections

AT, TRADES = "bundled:mnist-compact-at", "bundled:mnist-compact-trades"
CCAT, RCD = "bundled:mnist-compact-ccat", "bundled:mnist-compact-rcd"
ATRR = "bundled:mnist-compact-atrr"
CIFAR10_AT = "bundled:cifar10-compact-at"


def paper_cpr(radius: float = paper.RADIUS, steps: int = paper.STEPS) -> Consistency:
    """CPR on MNIST; a radius that the steps cannot reach is the one that they can."""
    reach = round(steps * paper.STEP_SIZE, 9)
    return Consistency(radius=min(radius, reach), steps=steps, step_size=paper.STEP_SIZE)


def cifar10_cpr() -> Consistency:
    """CPR on CIFAR-10."""
    return Consistency(
        radius=paper.CIFAR10_RADIUS, steps=paper.CIFAR10_STEPS, step_size=paper.CIFAR10_STEP_SIZE
    )


MAIN: Mapping[str, tuple[str, RejectionRule, float | None]] = {
    "AT": (AT, AcceptAll(), None),
    "AT+CR": (AT, Confidence(), paper.REJECT_RATE),
    "TRADES": (TRADES, AcceptAll(), None),
    "TRADES+CR": (TRADES, Confidence(), paper.REJECT_RATE),
    "CCAT": (CCAT, Confidence(), paper.REJECT_RATE),
    "RCD": (RCD, RejectClass(), None),
    "ATRR": (ATRR, RectifiedConfidence(), paper.REJECT_RATE),
    "AT+CPR": (AT, paper_cpr(), None),
    "TRADES+CPR": (TRADES, paper_cpr(), None),
}
"""The methods of the main table: network, rule, and the rate that the rule is calibrated to."""

BASELINES = ("AT+CR", "TRADES+CR", "CCAT", "RCD", "ATRR")
CPR = ("AT+CPR", "TRADES+CPR")


def main(options: Options) -> Iterator[Task]:
    """All methods under seen and unseen attacks, those of one network together."""
    for method, (address, rule, rate) in sorted(MAIN.items(), key=lambda item: _place(item[1][0])):
        for budget, eps in paper.EPS.items():
            seen = budget == paper.SEEN
            yield Task(
                stage="main",
                method=method,
                address=address,
                dataset="mnist",
                eps=eps,
                rule=rule,
                rate=rate,
                compare_rate=paper.REJECT_RATE if method in CPR and seen else None,
                num=options.images,
                plan=None if rule.can_reject else options.autoattack,
                clean=seen,
            )


def _place(address: str) -> int:
    """Where a network comes in the main table, so that a stopped run has whole comparisons."""
    return [used for used, _, _ in MAIN.values()].index(address)


def check(options: Options) -> Iterator[Task]:
    """CPR with more effort than in the main table, on a few of its images."""
    for task in main(options):
        if task.method in CPR:
            num = min(options.images, options.check)
            yield replace(task, stage="check", num=num, plan=options.harder, clean=False)


def rejections(options: Options) -> Iterator[Task]:
    """The search for rejections on every image, with an accepted mistake or without."""
    for task in main(options):
        if task.method in ("CCAT", "RCD"):
            plan = Rejections()
            yield replace(task, stage="rejections", num=options.few_images, plan=plan, clean=False)


def ccat(options: Options) -> Iterator[Task]:
    """Two attacks on CCAT, each alone."""
    for eps in paper.EPS.values():
        for plan in (options.high_confidence, options.backtracking):
            yield Task(
                stage="ccat",
                method="CCAT",
                address=CCAT,
                dataset="mnist",
                eps=eps,
                rule=Confidence(),
                rate=paper.REJECT_RATE,
                num=options.few_images,
                plan=plan,
                labels={"attack": plan.name},
            )


def attacks(options: Options) -> Iterator[Task]:
    """Every attack on CPR alone, on equal terms."""
    task = Task(
        stage="attacks",
        method="AT+CPR",
        address=AT,
        dataset="mnist",
        eps=paper.EPS[paper.SEEN],
        rule=paper_cpr(),
        num=options.few_images,
        plan=options.equal_terms,
        ablation=True,
    )
    yield task
    yield replace(task, method="TRADES+CPR", address=TRADES)
    # Far more images break there, which ranks attacks that CPR on MNIST cannot tell apart.
    eps = paper.CIFAR10_EPS[paper.SEEN]
    labels = {"data": "cifar10"}
    yield replace(
        task, address=CIFAR10_AT, dataset="cifar10", eps=eps, rule=cifar10_cpr(), labels=labels
    )


def radius(options: Options) -> Iterator[Task]:
    """AT+CPR with other radii and numbers of steps, on test and on validation images."""
    seen = set()
    for part in ("robust", "validation"):
        for steps in paper.STEP_COUNTS:
            for size in paper.RADII:
                task = Task(
                    stage="radius",
                    method="AT+CPR",
                    address=AT,
                    dataset="mnist",
                    eps=paper.EPS[paper.SEEN],
                    rule=(rule := paper_cpr(size, steps)),
                    num=options.few_images,
                    part=part,
                    labels={"images": part, "radius": rule.radius, "steps": steps},
                )
                if task.folder not in seen:
                    seen.add(task.folder)
                    yield task


def cifar10(options: Options) -> Iterator[Task]:
    """The CIFAR-10 network with three rules and none, and a naturally trained one beside it."""
    cpr = cifar10_cpr()
    # Steps twice as long, so that the calibration can go beyond the paper's radius.
    wide = replace(cpr, step_size=2 * paper.CIFAR10_STEP_SIZE)
    rate = paper.CIFAR10_REJECT_RATE
    methods: dict[str, tuple[str, RejectionRule, float | None]] = {
        "AT": (CIFAR10_AT, AcceptAll(), None),
        "AT+CR": (CIFAR10_AT, Confidence(), rate),
        "AT+CPR": (CIFAR10_AT, cpr, None),
        "AT+CPR calibrated": (CIFAR10_AT, wide, rate),
        "natural": (NATURAL, AcceptAll(), None),
        "natural+CPR": (NATURAL, cpr, None),
    }
    for budget, eps in paper.CIFAR10_EPS.items():
        for method, (address, rule, calibrated) in methods.items():
            natural = address == NATURAL
            yield Task(
                stage="cifar10",
                method=method,
                address=address,
                dataset="cifar10",
                eps=eps,
                rule=rule,
                rate=calibrated,
                num=options.contrast if natural else options.few_images,
                plan=None if rule.can_reject else options.autoattack,
                clean=budget == paper.SEEN and not natural,
            )


TASKS: Mapping[str, Callable[[Options], Iterator[Task]]] = {
    "main": main,
    "check": check,
    "rejections": rejections,
    "ccat": ccat,
    "attacks": attacks,
    "radius": radius,
    "cifar10": cifar10,
}
AUDITED = ("main", "cifar10")
"""Stages whose evaluations are audited; the others run single attacks or small grids on purpose."""


def within_rate(rejected: int, correct: int, rate: float = paper.REJECT_RATE) -> bool:
    """Whether no more of the correct answers are rejected than a rate allows."""
    return correct > 0 and rejected <= correct * rate + 1e-9


def run(bench: Bench, stage: str) -> list[str]:
    """Run a stage.

    Args:
        bench: Where.
        stage: Its name in `STAGES`.

    Returns:
        What had to be left out, one sentence each.
    """
    if stage == "audit":
        return _audit(bench)
    missing: list[str] = []
    for task in TASKS[stage](bench.options):
        try:
            if stage == "radius" and task.part == "validation" and not _worth_it(bench, task):
                bench.say(f"{task.folder}: rejects too many clean images to be chosen, left out")
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                bench.run(task)
        except LookupError as error:
            missing.append(f"{task.folder}: {' '.join(str(error).split())}")
    return missing


def _worth_it(bench: Bench, task: Task) -> bool:
    """Whether a rule may be chosen: only then is it attacked on validation images."""
    found = bench.rejected_of_validation(task)
    return within_rate(found["rejected_correct"], found["correct"])


def _audit(bench: Bench) -> list[str]:
    missing = []
    for stage in AUDITED:
        for task in TASKS[stage](bench.options):
            try:
                bench.audit(task)
            except LookupError as error:
                missing.append(f"{task.folder}: {' '.join(str(error).split())}")
    return missing
