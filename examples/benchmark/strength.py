"""What `standard` leaves on the images of an attack from outside, its spread over seeds, and pools.

    CPR_WRAP_DATA=data python -m examples.benchmark.strength --out examples/results/strength

The first rows are on the first MNIST test images, on which an attack written outside the project
was measured; they were looked at before, and no choice was made on them. The cells of the former
study are on its images, the first 200. Seeds and pools are on images 1000 and later.
`--table NAME` prints a table of docs/evaluation-protocol.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from cpr_wrap import SelectiveClassifier, load, load_data, robustness_curve
from cpr_wrap.attacks.ensemble import climb
from cpr_wrap.data import ImageData
from cpr_wrap.data.images import per_class
from examples.benchmark.ingredients import CPR, FIRST, Cell
from examples.study.cells import MAIN, Method

OUTSIDE = (
    # Cell, images, left by the former standard, left by the attack from outside
    (Cell("AT + CPR, 0.4", "mnist-compact-at", "mnist", 0.4, CPR), 200, 197, 79),
    (Cell("TRADES + CPR, 0.4", "mnist-compact-trades", "mnist", 0.4, CPR), 100, 97, 50),
    (Cell("AT + CPR, 0.3", "mnist-compact-at", "mnist", 0.3, CPR), 100, 99, 95),
    (Cell("CCAT, 0.4", "mnist-compact-ccat", "mnist", 0.4, {}), 200, 101, 9),
    (Cell("CCAT, 0.3", "mnist-compact-ccat", "mnist", 0.3, {}), 200, 138, 82),
)
FORMER_IMAGES = 200
FORMER_STUDY = {
    # Left by the former standard of the first 200 images, at alpha 0 and at alpha 1
    ("AT+CPR", 0.3): (198, 10),
    ("AT+CPR", 0.4): (198, 0),
    ("TRADES+CPR", 0.3): (198, 4),
    ("TRADES+CPR", 0.4): (196, 0),
    ("CCAT", 0.3): (138, 0),
    ("CCAT", 0.4): (101, 0),
    ("AT+CR", 0.3): (190, 176),
    ("AT+CR", 0.4): (0, 0),
    ("TRADES+CR", 0.3): (187, 182),
    ("TRADES+CR", 0.4): (0, 0),
    ("RCD", 0.3): (180, 180),
    ("RCD", 0.4): (0, 0),
    ("ATRR", 0.3): (187, 152),
    ("ATRR", 0.4): (0, 0),
    ("AT", 0.3): (180, 180),
    ("AT", 0.4): (0, 0),
    ("TRADES", 0.3): (184, 184),
    ("TRADES", 0.4): (0, 0),
}
SEEDS, SEED_IMAGES = (0, 1, 2), 32
POOLS, POOL_IMAGES = (2, 6, 20, 2000), 32


class DonorsAlone:
    """A budget of restarts from donors alone."""

    name = "donors-alone"

    def stages(self, rule: Any, eps: float) -> tuple[Any, ...]:
        """One stage, as in `standard`."""
        del eps
        return (climb(rule, "-donors"),)

    def __repr__(self) -> str:
        return "DonorsAlone()"


def run(cell: Cell, start: int, num: int, **more: Any) -> dict[str, Any]:
    """Attack the images and count."""
    model = load(f"bundled:{cell.network}", **cell.settings)
    model.base.to(memory_format=torch.channels_last)
    return attack(
        cell.name, model, cell.eps, load_data(cell.dataset, "test", start=start, num=num), **more
    )


def attack(
    name: str, model: SelectiveClassifier, eps: float, data: ImageData, **more: Any
) -> dict[str, Any]:
    """What `standard`, or another budget, leaves of the images."""
    num = len(data)
    settings = {"block_size": min(num, 100), "indices": data.indices, **more}
    curve = robustness_curve(model, data.images, data.labels, eps, **settings)
    broken = curve.records.index[curve.records.outer_broken].tolist()
    return {
        "cell": name,
        "images": num,
        "left": num - len(broken),
        "left_at_1": round(num * curve.accuracy_at(1)),
        "broken": broken,
        "passes": round(curve.passes_per_image),
    }


def work() -> Iterator[tuple[str, Any]]:
    """Names of the files, and how each is made."""
    for number, (cell, images, former, outside) in enumerate(OUTSIDE):
        known = {"former": former, "outside": outside}
        yield f"outside-{number}", lambda c=cell, n=images, k=known: run(c, 0, n) | k
    for method in MAIN:
        for eps in (0.3, 0.4):
            if (method.name, eps) in FORMER_STUDY:
                yield f"former-{method.name.lower()}-{eps}", partial(_former, method, eps)
    for place in (0, 4):
        cell = OUTSIDE[place][0]
        for seed in SEEDS:
            yield (
                f"seed-{place}-{seed}",
                lambda c=cell, s=seed: run(c, FIRST, SEED_IMAGES, seed=s) | {"seed": s},
            )
    for count in POOLS:
        yield f"pool-{count}", lambda n=count: _pool(n)


def _former(method: Method, eps: float) -> dict[str, Any]:
    data = load_data("mnist", "test", num=FORMER_IMAGES)
    before, before_at_1 = FORMER_STUDY[method.name, eps]
    found = attack(f"{method.name}, {eps}", method.model(), eps, data)
    return found | {"former": before, "former_at_1": before_at_1}


def _pool(count: int) -> dict[str, Any]:
    train = load_data("mnist", "train")
    donors = per_class(train.images, train.labels, count)
    found = run(OUTSIDE[0][0], FIRST, POOL_IMAGES, budget=DonorsAlone(), donors=donors)
    return found | {"per_class": count}


def table(out: Path, kind: str) -> str:
    """One of the tables in Markdown: outside, former, seed or pool."""
    found = [json.loads(file.read_text()) for file in sorted(out.glob(f"{kind}-*.json"))]
    if kind == "outside":
        titles = ["setting", "images", "former standard", "attack from outside", "standard"]
        rows = [[f[k] for k in ("cell", "images", "former", "outside", "left")] for f in found]
    elif kind == "former":
        titles = ["setting", "images", "former standard", "standard"]
        titles += ["former standard, α = 1", "standard, α = 1"]
        keys = ("cell", "images", "former", "left", "former_at_1", "left_at_1")
        rows = [[f[k] for k in keys] for f in found]
    elif kind == "seed":
        titles = ["setting", "images", "seed", "left"]
        rows = [[f[k] for k in ("cell", "images", "seed", "left")] for f in found]
    else:
        titles = ["donors per class", "images", "broken by one restart per image"]
        found = sorted(found, key=lambda f: f["per_class"])
        rows = [[f"{f['per_class']:,}", f["images"], len(f["broken"])] for f in found]
    if kind != "pool":
        titles.append("passes per image")
        rows = [[*row, f"{f['passes']:,}"] for row, f in zip(rows, found, strict=True)]
    return str(tabulate(rows, headers=titles, tablefmt="github"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--table", choices=("outside", "former", "seed", "pool"))
    asked = parser.parse_args()
    if asked.table:
        print(table(asked.out, asked.table))
        return
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, make in work():
        file = asked.out / f"{name}.json"
        if asked.only in name and not file.exists():
            found = make()
            file.write_text(json.dumps(found) + "\n")
            print(name, {k: v for k, v in found.items() if k != "broken"}, flush=True)


if __name__ == "__main__":
    main()
