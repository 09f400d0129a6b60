"""What `standard` leaves on the images of an attack from outside, its spread over seeds, and pools.

    CPR_WRAP_DATA=data python -m examples.benchmark.strength --out examples/results/strength

The first rows are on the first MNIST test images, on which an attack written outside the project
was measured; they were looked at before, and no choice was made on them. Seeds and pools are on
images 1000 and later. `--table NAME` prints a table of docs/evaluation-protocol.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from cpr_wrap import load, load_data, robustness_curve
from cpr_wrap.attacks.donors import per_class
from cpr_wrap.attacks.ensemble import climb
from examples.benchmark.ingredients import CPR, FIRST, Cell

OUTSIDE = (
    # Cell, images, left by the former standard, left by the attack from outside
    (Cell("AT + CPR, 0.4", "mnist-compact-at", "mnist", 0.4, CPR), 200, 197, 79),
    (Cell("TRADES + CPR, 0.4", "mnist-compact-trades", "mnist", 0.4, CPR), 100, 97, 50),
    (Cell("AT + CPR, 0.3", "mnist-compact-at", "mnist", 0.3, CPR), 100, 99, 95),
    (Cell("CCAT, 0.4", "mnist-compact-ccat", "mnist", 0.4, {}), 200, 101, 9),
    (Cell("CCAT, 0.3", "mnist-compact-ccat", "mnist", 0.3, {}), 200, 138, 82),
)
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
    data = load_data(cell.dataset, "test", start=start, num=num)
    model = load(f"bundled:{cell.network}", **cell.settings)
    model.base.to(memory_format=torch.channels_last)
    settings = {"block_size": min(num, 100), "indices": data.indices, **more}
    curve = robustness_curve(model, data.images, data.labels, cell.eps, **settings)
    broken = curve.records.index[curve.records.outer_broken].tolist()
    return {
        "cell": cell.name,
        "images": num,
        "left": num - len(broken),
        "broken": broken,
        "passes": round(curve.passes_per_image),
    }


def work() -> Iterator[tuple[str, Any]]:
    """Names of the files, and how each is made."""
    for number, (cell, images, former, outside) in enumerate(OUTSIDE):
        known = {"former": former, "outside": outside}
        yield f"outside-{number}", lambda c=cell, n=images, k=known: run(c, 0, n) | k
    for place in (0, 4):
        cell = OUTSIDE[place][0]
        for seed in SEEDS:
            yield (
                f"seed-{place}-{seed}",
                lambda c=cell, s=seed: run(c, FIRST, SEED_IMAGES, seed=s) | {"seed": s},
            )
    for count in POOLS:
        yield f"pool-{count}", lambda n=count: _pool(n)


def _pool(count: int) -> dict[str, Any]:
    train = load_data("mnist", "train")
    donors = per_class(train.images, train.labels, count)
    found = run(OUTSIDE[0][0], FIRST, POOL_IMAGES, budget=DonorsAlone(), donors=donors)
    return found | {"per_class": count}


def table(out: Path, kind: str) -> str:
    """One of the tables in Markdown: outside, seed or pool."""
    found = [json.loads(file.read_text()) for file in sorted(out.glob(f"{kind}-*.json"))]
    if kind == "outside":
        titles = ["setting", "images", "former standard", "attack from outside", "standard"]
        rows = [[f[k] for k in ("cell", "images", "former", "outside", "left")] for f in found]
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
    parser.add_argument("--table", choices=("outside", "seed", "pool"))
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
