"""Does T find the way back? The same network with ReLU and with LeakyReLU, trained alike.

    CPR_WRAP_DATA=data python -m examples.benchmark.activations --out examples/results/activations

Trains both networks adversarially on 20,000 MNIST images (some minutes each), attacks both with
`standard`, with CPR and without rejection, and hands the images that are left under CPR to
`examples.benchmark.outsider`, which shares no code with our attacks. The test images are in no
other report, and nothing was tuned on either network. `--table` prints the table of
docs/choosing-a-radius.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from cpr_wrap import AcceptAll, Consistency, SelectiveClassifier, load_data, robustness_curve
from cpr_wrap.training import AT, RECIPES, train
from examples.benchmark.outsider import POOL, Outsider

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"ReLU": nn.ReLU, "LeakyReLU": nn.LeakyReLU}
FIRST, TRAINED, EPS = 5000, 0.3, 0.4
LEFT = {
    "bare": f"left without rejection, eps {TRAINED}",
    "beyond": f"eps {EPS}",
    "cpr": f"left with CPR, eps {EPS}",
}


def network(activation: Callable[[], nn.Module]) -> nn.Module:
    """Two layers of convolutions and one of 128 units, each with the activation."""
    return nn.Sequential(
        *(nn.Conv2d(1, 12, 5, padding=2), activation(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 5, padding=2), activation(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(24 * 49, 128), activation(), nn.Linear(128, 10)),
    )


def trained(activation: str, work: Path) -> nn.Module:
    """The network after adversarial training; read from its folder if it is there."""
    torch.manual_seed(0)
    recipe = replace(RECIPES["mnist-compact-at"], epochs=5, method=AT(eps=TRAINED, steps=8))
    data = load_data("mnist", "train", num=POOL)
    made = network(ACTIVATIONS[activation])
    train(recipe, data, network=made, out=work / activation)
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return made.eval()


def measure(base: nn.Module, images: int, most: int, store: Path) -> dict[str, Any]:
    """Attack a network bare and under CPR, and what is left of the latter by the outsider."""
    data, pool = load_data("mnist", "test", start=FIRST, num=images), load_data("mnist", "train")
    cpr = Consistency(radius=0.1, steps=20, step_size=0.01)
    left = {}
    for name, rule, eps in (
        ("bare", AcceptAll(), TRAINED),
        ("beyond", AcceptAll(), EPS),
        ("cpr", cpr, EPS),
    ):
        model = SelectiveClassifier(base, rule)
        task = (model, data.images, data.labels, eps)
        curve = robustness_curve(*task, indices=data.indices, store=store, progress=True)
        left[name] = (~curve.records.outer_broken).nonzero().flatten().tolist()
    outsider = Outsider(model, EPS, pool.images[:POOL], pool.labels[:POOL])
    broken, spent = [], 0
    for row in left["cpr"]:
        number = int(data.indices[row])
        found, took = outsider.breaks(data.images[row], int(data.labels[row]), most, number)
        broken += [number] * found
        spent += took
        print(number, found, took, flush=True)
    return {
        "images": images,
        **{f"left_{name}": len(rows) for name, rows in left.items()},
        "clean_rejected": int((curve.records.clean_label < 0).sum()),
        "passes": round(curve.passes_per_image),
        "outsider_broken": broken,
        "outsider_passes": round(spent / max(1, len(left["cpr"]))),
    }


def table(out: Path) -> str:
    """Both networks as a Markdown table."""
    rows = []
    for activation in ACTIVATIONS:
        file = out / f"{activation}.json"
        if file.exists():
            found = json.loads(file.read_text())
            left = [f"{found[f'left_{name}']} of {found['images']}" for name in LEFT]
            broken = f"{len(found['outsider_broken'])} ({found['outsider_passes']:,})"
            rows.append([activation, *left, broken])
    titles = ["activation", *LEFT.values(), "of these broken from outside (passes each)"]
    return str(tabulate(rows, headers=titles, tablefmt="github"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/activations"))
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--most", type=int, default=90_000, help="the outsider's passes per image")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if not asked.table:
        torch.set_num_threads(1)
        asked.out.mkdir(parents=True, exist_ok=True)
        for activation in ACTIVATIONS:
            base = trained(activation, asked.work)
            file = asked.out / f"{activation}.json"
            if not file.exists():
                found = measure(base, asked.images, asked.most, asked.work / "store")
                file.write_text(json.dumps(found, indent=1) + "\n")
    print(table(asked.out))


if __name__ == "__main__":
    main()
