"""What each ingredient of an attack finds alone, at about equal passes, on images no report uses.

    python -m examples.benchmark.ingredients --out examples/results/ingredients --images 32

Every ingredient is run on fresh blocks of MNIST's test images 1000 and later, or CIFAR-10's. The
broken images and the passes go into one JSON file per cell; a greedy choice by new errors per pass
is printed. examples/tables.py makes the table of docs/evaluation-protocol.md of those files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from cpr_wrap import load, load_data
from cpr_wrap.attacks.adaptive import Attack, Stage
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.attacks.donors import Donors, DonorStarts
from cpr_wrap.attacks.ensemble import MOST_TARGETS
from cpr_wrap.data import donor_pool
from cpr_wrap.engine.block import Block, rank_targets
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.meter import count_passes
from cpr_wrap.objective import Goal
from cpr_wrap.rule import RejectionRule
from cpr_wrap.rules.cpr import consistent_mistake, path_mistake
from cpr_wrap.selective import SelectiveClassifier

FIRST = 1000
CPR = {"rule": "cpr", "radius": 0.1, "steps": 20, "step_size": 0.01}
SMALL_CPR = {"rule": "cpr"}


@dataclass(frozen=True)
class Cell:
    """A network with a rule and a budget of the adversary."""

    name: str
    network: str
    dataset: str
    eps: float
    settings: dict[str, Any]

    def model(self) -> SelectiveClassifier:
        """Load it."""
        return load(f"bundled:{self.network}", **self.settings)


CONFIDENCE = {"rule": "confidence", "threshold": 0.9}
LOW_CONFIDENCE = {"rule": "confidence", "threshold": 0.27}  # rejects 5% of right answers
CELLS = (
    Cell("AT + CPR, 0.4", "mnist-compact-at", "mnist", 0.4, CPR),
    Cell("TRADES + CPR, 0.4", "mnist-compact-trades", "mnist", 0.4, CPR),
    Cell("AT + CPR, 0.3", "mnist-compact-at", "mnist", 0.3, CPR),
    Cell("CCAT, 0.4", "mnist-compact-ccat", "mnist", 0.4, {}),
    Cell("CCAT, 0.3", "mnist-compact-ccat", "mnist", 0.3, {}),
    Cell("AT + confidence, 0.3", "mnist-compact-at", "mnist", 0.3, CONFIDENCE),
    Cell("RCD, 0.3", "mnist-compact-rcd", "mnist", 0.3, {}),
    Cell("ATRR, 0.3", "mnist-compact-atrr", "mnist", 0.3, {}),
    Cell("AT, none, 0.3", "mnist-compact-at", "mnist", 0.3, {"rule": "none"}),
    Cell("verified, 0.4", "mnist-compact-ibp", "mnist", 0.4, {}),
    Cell("CIFAR-10 AT + CPR, 8/255", "cifar10-compact-at", "cifar10", 8 / 255, SMALL_CPR),
    Cell(
        "CIFAR-10 AT + confidence, 8/255",
        "cifar10-compact-at",
        "cifar10",
        8 / 255,
        LOW_CONFIDENCE,
    ),
)


def ingredients(rule: RejectionRule) -> Iterator[tuple[str, Stage]]:
    """Attacks that differ in one thing each."""
    yield from _on_paths(rule) if rule.outer[-1].path else _at_points(rule)


def _on_paths(rule: RejectionRule) -> Iterator[tuple[str, Stage]]:
    new = Attack(
        objective=path_mistake,
        goal=Goal.ACCEPTED_MISTAKE,
        steps=50,
        step=1 / 8,
        shrink=0.1,
        momentum=0.75,
        starts=DonorStarts(keep=2),
        stand_in=False,
        aimed=True,
        gradient="smoothed",
        refresh=3,
    )
    yield "donors, smoothed, path", new
    yield "… exact gradient", replace(new, gradient="exact")
    yield "… alternating", replace(new, gradient="alternating")
    yield "… random start", replace(new, starts=(1,), targets=2)
    yield "… start at the image", replace(new, starts=(0,), targets=2)
    yield "… end of the path alone", replace(new, objective=consistent_mistake)
    yield "… constant steps", replace(new, shrink=1.0, step=1 / 16)
    yield "… T anew at every step", replace(new, refresh=1, steps=25)
    yield (
        "… stand-in for T",
        replace(
            new, objective=consistent_mistake, stand_in=True, refresh=1, starts=DonorStarts(keep=7)
        ),
    )
    old = Attack(
        objective=consistent_mistake,
        goal=Goal.ACCEPTED_MISTAKE,
        steps=20,
        step=1 / 3,
        momentum=0.75,
        targets=MOST_TARGETS,
        starts=(1, 2),
    )
    yield "stand-in, random starts, 9 classes", old
    yield "T itself, random start", replace(old, steps=25, starts=(1,), targets=2, stand_in=False)
    for objective in rule.outer[:1]:
        starts = (0, 1, 2) if not objective.path else (1,)
        yield f"{objective.name}, 9 classes", replace(old, objective=objective, starts=starts)
    yield "AutoAttack on the network", AutoAttackOnBase(version="small")


def _at_points(rule: RejectionRule) -> Iterator[tuple[str, Stage]]:
    near = DonorStarts(
        near=20, forms=("projected", "corner", "pushed"), keep=10, distinct=False, screen=20
    )
    new = Attack(
        objective=rule.outer[-1],
        goal=Goal.ACCEPTED_MISTAKE,
        steps=40,
        step=1 / 8,
        shrink=0.04,
        momentum=0.75,
        starts=near,
        gradient="exact",
    )
    yield "donors, exact", new
    yield "… smoothed", replace(new, gradient="smoothed")
    yield "… alternating", replace(new, gradient="alternating")
    yield (
        "… alternating, larger steps",
        replace(
            new,
            gradient="alternating",
            step=1 / 4,
            shrink=0.02,
            steps=60,
            starts=replace(near, keep=7),
        ),
    )
    yield "… constant steps", replace(new, shrink=1.0, step=1 / 16)
    yield "… random start, 9 classes", replace(new, starts=(1,), targets=MOST_TARGETS, steps=60)
    yield (
        "… start at the image, 9 classes",
        replace(new, starts=(0,), targets=MOST_TARGETS, steps=60),
    )
    yield (
        "… random, alternating",
        replace(new, starts=(1,), targets=MOST_TARGETS, steps=60, gradient="alternating"),
    )
    old = replace(new, shrink=1.0, targets=MOST_TARGETS, starts=(0,), steps=60)
    yield "small constant steps", replace(old, step=0.1, starts=(3,))
    yield "much momentum", replace(old, step=1 / 3, momentum=0.9, starts=(2,))
    if rule.can_reject:
        yield "AutoAttack, adaptive", AdaptiveAutoAttack(n_iter=100)
    yield "AutoAttack on the network", AutoAttackOnBase(version="small")


def measure(cell: Cell, count: int, first: int = FIRST) -> dict[str, Any]:
    """Run every ingredient alone on `count` images."""
    data = load_data(cell.dataset, "test", start=first, num=count)
    model = cell.model()
    model.base.to(memory_format=torch.channels_last)
    pool = donor_pool(cell.dataset, 200)
    donors = None if pool is None else Donors(pool.images, pool.labels, cell.dataset)
    rows = []
    for name, stage in ingredients(model.rule):
        block = Block(
            model,
            data.images,
            data.labels,
            data.indices,
            eps=cell.eps,
            norm="Linf",
            batch_size=256,
            donors=donors,
        )
        block.judge_clean()
        rank_targets(block, MOST_TARGETS)
        with count_passes() as passes:
            run_stage(block, stage, seed=0)
        broken = block.index[block.found[Goal.ACCEPTED_MISTAKE].known].tolist()
        rows.append({"name": name, "passes": passes.total / count, "broken": broken})
        print(f"  {name:36s} {len(broken):3d} of {count}  {passes.total / count:7.0f}", flush=True)
    kind = "path" if model.rule.outer[-1].path else "point"
    return {"cell": cell.name, "kind": kind, "images": count, "first": first, "rows": rows}


def greedy(rows: list[dict[str, Any]]) -> list[tuple[str, int, float]]:
    """Ingredients in the order of new errors per pass, until nothing new is found."""
    found: set[int] = set()
    order = []
    left = list(rows)
    while left:
        best = max(left, key=lambda row: len(set(row["broken"]) - found) / row["passes"])
        new = set(best["broken"]) - found
        if not new:
            break
        found |= new
        order.append((best["name"], len(found), best["passes"]))
        left.remove(best)
    return order


def table(out: Path) -> str:
    """What each ingredient breaks alone, as a Markdown table: one row each, one column per cell."""
    found = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    parts = []
    for kind in ("path", "point"):
        here = [f for f in found if f["kind"] == kind]
        names = list(dict.fromkeys(row["name"] for f in here for row in f["rows"]))
        titles = ["ingredient", *(f"{f['cell']}, n = {f['images']}" for f in here)]
        rows = []
        for name in names:
            cells = [next((r for r in f["rows"] if r["name"] == name), None) for f in here]
            text = ["–" if r is None else f"{len(r['broken'])} ({r['passes']:.0f})" for r in cells]
            rows.append([name, *text])
        if here:
            parts.append(str(tabulate(rows, headers=titles, tablefmt="github")))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(CELLS):
        file = asked.out / f"{number:02d}.json"
        if asked.only not in cell.name:
            continue
        if not file.exists():
            print(cell.name, flush=True)
            file.write_text(json.dumps(measure(cell, asked.images), indent=1) + "\n")
        for name, total, passes in greedy(json.loads(file.read_text())["rows"]):
            print(f"    {cell.name}: {name} → {total} in all, {passes:.0f} passes")


if __name__ == "__main__":
    main()
