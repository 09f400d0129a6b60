"""Is any published point inside a certified radius? `python examples/certificates/records.py`.

For each network, the nearest mistake that any published run found around an image is taken, and the
bounds are asked whether they prove the true class at that distance. They must never. Results that
carry a certificate are checked against it. Needs all of MNIST's test images: set CPR_WRAP_DATA.
Writes `examples/results/certificates/records.md`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch

from cpr_wrap import load, load_data, load_result
from cpr_wrap.bounds import crown_leads, leads

PUBLISHED = Path(__file__).parent.parent / "results"
RESULTS = PUBLISHED / "certificates"


def nearest(folders: list[Path]) -> dict[str, dict[int, float]]:
    """For each network, the nearest mistake around each test image that any run found."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for file in sorted(f for folder in folders for f in folder.rglob("per_image.jsonl")):
        run = json.loads((file.parent / "result.json").read_text())
        about = run.get("about", run)  # of older results, at the top
        if about["dataset"] != "mnist" or about["part"] not in ("test", "robust"):
            continue
        known = found[about["model"]]
        for line in file.read_text().splitlines():
            row = json.loads(line)
            for key in ("boundary_distance", "outer_distance"):
                if row.get(key) is not None:
                    known[row["index"]] = min(known.get(row["index"], 9.0), row[key])
    return found


def checked(results: Path) -> int:
    """How many results carry a certificate that none of their points contradicts."""
    found = [load_result(file.parent) for file in sorted(results.glob("*/result.json"))]
    for curve in found:
        assert curve.certificate is not None
        curve.certificate.check(curve.records)  # an error where a point lies inside
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Published points against certificates.")
    parser.add_argument("--crown", type=int, default=30, help="on how many images CROWN is asked")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="more folders of results")
    chosen = parser.parse_args()
    data = load_data("mnist", "test")
    lines = ["| network | images | of them by CROWN too | violations |", "|---|---|---|---|"]
    for name, found in sorted(nearest([PUBLISHED, *chosen.also]).items()):
        network, classes = load(name).base, data.num_classes
        index = torch.tensor(sorted(found))
        radius = torch.tensor([found[n] for n in sorted(found)], dtype=torch.float64)
        x, y = data.images[index], data.labels[index]
        some = radius.argsort()[: chosen.crown]  # the nearest, where CROWN proves most
        with torch.no_grad():
            proven = leads(network, x, y, radius, num_classes=classes).amin(1) > 0
            also = crown_leads(network, x[some], y[some], radius[some], num_classes=classes)
        bad = int(proven.sum()) + int((also.amin(1) > 0).sum())
        lines.append(f"| `{name}` | {len(index)} | {len(some)} | {bad} |")
        print(lines[-1], flush=True)
    note = f"\n{checked(RESULTS)} results carry a certificate; no point of theirs contradicts it.\n"
    (RESULTS / "records.md").write_text("\n".join(lines) + "\n" + note)
    print(note)


if __name__ == "__main__":
    main()
