"""Which variant of T survives attacks that know it? At equal passes of a prediction.

    python -m examples.benchmark.variants --out examples/results/variants --images 32

Runs `standard` on MNIST test images 1000 and later, which no report uses, and writes one JSON file
per variant and budget of the adversary. `--table` prints the table of docs/choosing-a-radius.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from cpr_wrap import SelectiveClassifier, load_data, load_network, robustness_curve
from cpr_wrap.rules import Consistency

FIRST, NETWORK, BUDGETS = 1000, "mnist-compact-at", (0.4,)
RADIUS = {"radius": 0.1}
VARIANTS: dict[str, dict[str, Any]] = {
    "Algorithm 1": {"steps": 20, "step_size": 0.01},
    "keep the best point": {"steps": 20, "step_size": 0.01, "keep": "best"},
    "every point of the path": {"steps": 20, "step_size": 0.01, "verdict": "any"},
    "two starts of 10 steps": {"steps": 10, "step_size": 0.02, "starts": 2},
    "smoothed gradients in T": {"steps": 20, "step_size": 0.01, "smooth": True},
    "every point, smoothed": {"steps": 20, "step_size": 0.01, "verdict": "any", "smooth": True},
}


def measure(settings: dict[str, Any], eps: float, images: int) -> dict[str, Any]:
    """Attack one variant with `standard`."""
    data = load_data("mnist", "test", start=FIRST, num=images)
    network = load_network(f"bundled:{NETWORK}").network.to(memory_format=torch.channels_last)
    model = SelectiveClassifier(network, Consistency(**RADIUS, **settings))
    curve = robustness_curve(
        model, data.images, data.labels, eps, indices=data.indices, block_size=images
    )
    return {
        "rule": model.rule.describe(),
        "eps": eps,
        "images": images,
        "cost": model.rule.cost.total,
        "left": int((~curve.records.outer_broken).sum()),
        "clean_rejected": int((curve.records.clean_label < 0).sum()),
        "half": curve.accuracy_at(0.5),
        "passes": round(curve.passes_per_image),
    }


def table(out: Path) -> str:
    """The variants as rows of a Markdown table."""
    rows = []
    for number, name in enumerate(VARIANTS):
        files = [out / f"{number}-{eps}.json" for eps in BUDGETS]
        found = [json.loads(file.read_text()) for file in files if file.exists()]
        left = [f"{each['left']} of {each['images']}" for each in found]
        if found:
            rows.append([name, found[0]["cost"], *left, f"{found[0]['passes']:,}"])
    titles = ["variant of T", "passes of a prediction"]
    titles += [f"left at eps {eps:g}" for eps in BUDGETS] + [f"passes per image at {BUDGETS[0]:g}"]
    return str(tabulate(rows, headers=titles, tablefmt="github"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for eps in () if asked.table else BUDGETS:
        for number, (name, settings) in enumerate(VARIANTS.items()):
            file = asked.out / f"{number}-{eps}.json"
            if not file.exists():
                found = measure(settings, eps, asked.images)
                file.write_text(json.dumps(found, indent=1) + "\n")
                print(f"{name}, eps {eps:g}: {found}", flush=True)
    print(table(asked.out))


if __name__ == "__main__":
    main()
