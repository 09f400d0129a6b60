"""An attack that shares no code with ours, on the images that `thorough` left.

    CPR_WRAP_DATA=data python -m examples.benchmark.outsider --out examples/results/outsider

Restarts begin at averages of a few random training images of a random wrong class. They climb by
Adam and by signs, in turn, on the log-odds of that class at the point, and for CPR also at T's end,
whose gradient is taken as that of the point. Only `model(x)` says whether a point counts. Each
image gets ten times the passes per image that `thorough` took, and leaves at its first accepted
mistake.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from cpr_wrap import SelectiveClassifier, load_data, load_result
from examples.study.cells import Cell, cells, images
from examples.study.run import PUBLISHED

STEPS, POOL, NEAR = 100, 20_000, 200


class Outsider:
    """The attack on one image, which knows network, rule and training images."""

    def __init__(
        self, model: SelectiveClassifier, eps: float, donors: Tensor, labels: Tensor
    ) -> None:
        self.model, self.eps, self.donors, self.labels = model, eps, donors, labels
        rule: Any = model.rule
        self.steps = rule.steps if model.rule.name == "cpr" else 0
        self.radius = rule.radius if self.steps else 0.0
        self.size = rule.pgd.step_size if self.steps else 0.0
        self.rows = 8 if self.steps else 64

    def breaks(self, x: Tensor, y: int, most: int, seed: int) -> tuple[bool, int]:
        """Whether some point within eps is accepted as another class, and the passes it took."""
        spent, turn, draw = 0, 0, torch.Generator().manual_seed(seed)
        low, high = (x - self.eps).clamp(0, 1), (x + self.eps).clamp(0, 1)
        while spent < most:
            wrong = torch.randint(0, 9, (self.rows,), generator=draw)
            wrong = wrong + (wrong >= y)
            z = self._starts(x, low, high, wrong, draw)
            found, took = self._climb(z, low, high, wrong, y, signs=bool(turn % 2))
            spent, turn = spent + took, turn + 1
            if found:
                return True, spent
        return False, spent

    def _starts(self, x: Tensor, low: Tensor, high: Tensor, wrong: Tensor, draw: Any) -> Tensor:
        far = ((self.donors - x).abs() - self.eps).clamp_min(0).flatten(1).sum(1)
        points = []
        for row, label in enumerate(wrong.tolist()):
            places = (self.labels == label).nonzero().flatten()
            near = places[far[places].topk(min(NEAR, len(places)), largest=False).indices]
            count = 1 + int(torch.randint(0, 3, (1,), generator=draw))
            pick = near[torch.randint(0, len(near), (count,), generator=draw)]
            donor = self.donors[pick].mean(0)
            points.append(torch.where(donor > 0.3, high, low) if row % 2 else donor)
        return torch.stack(points).clamp(low, high)

    def _climb(
        self, z: Tensor, low: Tensor, high: Tensor, wrong: Tensor, y: int, *, signs: bool
    ) -> tuple[bool, int]:
        first, second, spent = torch.zeros_like(z), torch.zeros_like(z), 0
        for step in range(1, STEPS + 1):
            gradient = self._gradient(z, wrong)
            if self.steps:
                moved = self._path(z, wrong)
                gradient = gradient + self._gradient(moved, wrong)
            spent += len(z) * (2 + 2 * bool(self.steps) + 2 * self.steps)
            gradient = gradient.sign() if signs else gradient
            first = 0.9 * first + 0.1 * gradient
            second = 0.99 * second + 0.01 * gradient.square()
            rate = 0.1 * 0.02 ** (step / STEPS)
            move = first / (1 - 0.9**step) / ((second / (1 - 0.99**step)).sqrt() + 1e-12)
            z = (z + rate * move).clamp(low, high)
            if step % 5 == 0:
                answer = self.model(z)
                spent += len(z) * (1 + 2 * self.steps)
                if bool((answer.accepted & (answer.logits.argmax(1) != y)).any()):
                    return True, spent
        return False, spent

    def _gradient(self, z: Tensor, wrong: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        outputs = self.model.base(z)[:, :10]
        aim = outputs.gather(1, wrong[:, None])[:, 0]
        rest = outputs.scatter(1, wrong[:, None], -torch.inf).logsumexp(1)
        return torch.autograd.grad((aim - rest).sum(), z)[0]

    def _path(self, z: Tensor, wrong: Tensor) -> Tensor:
        """Algorithm 1 from z for the class aimed at."""
        low, high = (z - self.radius).clamp(0, 1), (z + self.radius).clamp(0, 1)
        moved = z
        for _ in range(self.steps):
            point = moved.detach().requires_grad_()
            loss = torch.nn.functional.cross_entropy(self.model.base(point), wrong, reduction="sum")
            uphill = torch.autograd.grad(loss, point)[0].sign()
            moved = (moved + self.size * uphill).clamp(low, high)
        return moved.detach()


def attack(cell: Cell) -> dict[str, Any] | None:
    """What the outsider breaks of the images that were left, if the cell was run."""
    folder = PUBLISHED / "thorough" / cell.name
    if not (folder / "result.json").exists():
        return None
    curve = load_result(folder)
    left = curve.records.index[~curve.records.outer_broken].tolist()
    most = round(10 * curve.passes_per_image)
    data = images(cell.method.dataset, "test", cell.start, cell.num)
    train = load_data(cell.method.dataset, "train", num=POOL)
    model = cell.method.model()
    for parameter in model.base.parameters():
        parameter.requires_grad_(False)
    outsider = Outsider(model, cell.eps, train.images, train.labels)
    broken, spent = [], 0
    for place, number in enumerate(data.indices.tolist()):
        if number in left:
            found, took = outsider.breaks(data.images[place], int(data.labels[place]), most, number)
            spent += took
            broken += [number] * found
            print(cell.name, number, found, took, flush=True)
    each = spent / max(1, len(left))
    return {"images": cell.num, "left": len(left), "broken": broken, "passes": round(each)}


def table(out: Path) -> str:
    """All cells in Markdown."""
    rows = []
    for cell in (c for c in cells() if c.stage == "thorough"):
        file = out / f"{cell.name}.json"
        if file.exists():
            found = json.loads(file.read_text())
            row = [f"{cell.method.name}, {cell.eps:g}", found["images"], found["left"]]
            rows.append([*row, len(found["broken"]), f"{found['passes']:,}"])
    titles = ["method, eps", "images", "left by thorough", "of these broken", "passes per image"]
    return str(tabulate(rows, headers=titles, tablefmt="github"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        print(table(asked.out))
        return
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for cell in (c for c in cells() if c.stage == "thorough" and asked.only in c.name):
        file = asked.out / f"{cell.name}.json"
        if not file.exists() and (found := attack(cell)) is not None:
            file.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
