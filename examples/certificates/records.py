"""Is any published point inside a certified radius? `python examples/certificates/records.py`.

For each network, the nearest mistake that any published run found around an image is taken, and the
bounds are asked whether they prove the true class at that distance. They must never.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch

from cpr_wrap import load, load_data
from cpr_wrap.bounds import crown_leads, leads

STUDY = Path(__file__).parent.parent.parent / "docs" / "study"


def nearest(study: Path, prefix: str) -> dict[int, float]:
    """The nearest mistake around each image that runs on a network found."""
    found: dict[int, float] = defaultdict(lambda: float("inf"))
    for file in sorted(study.glob(f"*/{prefix}*/per_image.jsonl")):
        if "cifar10" in str(file) or "validation" in file.parent.name:
            continue
        for line in file.read_text().splitlines():
            row = json.loads(line)
            for name in ("boundary_distance", "outer_distance"):
                if row.get(name) is not None:
                    found[row["index"]] = min(found[row["index"]], row[name])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Published points against certificates.")
    parser.add_argument("--crown", type=int, default=30, help="on how many images CROWN is asked")
    chosen = parser.parse_args()
    data = load_data("mnist", "test")
    for name in ("at", "trades", "ccat", "rcd", "atrr"):
        found = nearest(STUDY, f"{name}")
        network = load(f"bundled:mnist-compact-{name}").base
        classes = data.num_classes
        numbers = [n for n, distance in sorted(found.items()) if distance < float("inf")]
        index = torch.tensor(numbers)
        radius = torch.tensor([found[n] for n in numbers], dtype=torch.float64)
        x, y = data.images[index], data.labels[index]
        with torch.no_grad():
            bad = int((leads(network, x, y, radius, num_classes=classes).amin(1) > 0).sum())
            some = slice(0, chosen.crown)
            proven = crown_leads(network, x[some], y[some], radius[some], num_classes=classes)
        bad += int((proven.amin(1) > 0).sum())
        print(
            f"{name}: {len(numbers)} images, CROWN on {len(proven)}, {bad} violations", flush=True
        )


if __name__ == "__main__":
    main()
