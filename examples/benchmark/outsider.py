"""An attack that shares no code with ours, on the images that `thorough` left.

    CPR_WRAP_DATA=data python -m examples.benchmark.outsider --out examples/results/outsider

Restarts begin at averages of a few random training images of a random wrong class. They climb by
Adam and by signs, in turn, on the log-odds of that class at the point, and for CPR also at points
of T's path, whose gradients are taken as those of the point. Most restarts take their gradients
from a copy of the network whose ReLUs and max-poolings have soft gradients. Only `model(x)` says
whether a point counts. Each image gets ten times the passes per image that `thorough` took, at
most `--most`, and leaves at its first accepted mistake.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from cpr_wrap import SelectiveClassifier, load_data, load_result
from examples.study.cells import Cell, cells, images
from examples.study.run import PUBLISHED

STEPS, POOL, NEAR, SCREENED = 50, 20_000, 200, 8


def _width(x: Tensor) -> Tensor:
    """A share of the spread of each image and channel, `(N, C, 1, 1)` or `(N, 1)`."""
    spread = x.detach().std(dim=(2, 3) if x.dim() == 4 else 1, keepdim=True)
    return 0.15 * spread + 1e-12


class SoftReLU(nn.Module):
    """ReLU with the gradient of a softplus; a leaky one has a slope below 0."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of inputs `(N, ...)`."""
        bend = _width(x) * nn.functional.softplus(x / _width(x))
        soft = self.slope * x + (1 - self.slope) * bend
        return soft + (nn.functional.leaky_relu(x, self.slope) - soft).detach()


class SoftMaxPool(nn.Module):
    """Max-pooling with the gradient of a mean weighted by a softmax; windows do not overlap."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Max-pooling of inputs `(N, C, H, W)`."""
        n, c, h, w = x.shape
        k = self.size
        cells = x.reshape(n, c, h // k, k, w // k, k).permute(0, 1, 2, 4, 3, 5).flatten(4)
        weights = (cells / _width(x)[..., None]).softmax(-1).detach()
        soft = (cells * weights).sum(-1)
        return soft + (cells.amax(-1) - soft).detach()


def surrogate(network: nn.Module) -> nn.Module:
    """A copy of a network with soft functions in place of ReLU and max-pooling."""
    soft = copy.deepcopy(network)
    for parent in list(soft.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(parent, name, SoftReLU())
            elif isinstance(child, nn.LeakyReLU):
                setattr(parent, name, SoftReLU(child.negative_slope))
            elif isinstance(child, nn.MaxPool2d):
                setattr(parent, name, SoftMaxPool(int(child.kernel_size)))  # type: ignore[arg-type]
    return soft


class Outsider:
    """The attack on one image, which knows network, rule and training images."""

    def __init__(
        self, model: SelectiveClassifier, eps: float, donors: Tensor, labels: Tensor
    ) -> None:
        self.model, self.eps, self.donors, self.labels = model, eps, donors, labels
        self.steps = model.rule.cost.backwards
        self.soft = surrogate(model.base)
        self.rows = 32 if self.steps else 64

    def breaks(self, x: Tensor, y: int, most: int, seed: int) -> tuple[bool, int]:
        """Whether some point within eps is accepted as another class, and the passes it took."""
        spent, turn, draw = 0, 0, torch.Generator().manual_seed(seed)
        low, high = (x - self.eps).clamp(0, 1), (x + self.eps).clamp(0, 1)
        while spent < most:
            wrong = torch.randint(0, 9, (SCREENED * self.rows,), generator=draw)
            wrong = wrong + (wrong >= y)
            z = self._starts(x, low, high, wrong, draw)
            best = self._odds(self.model.base, z, wrong).topk(self.rows).indices
            z, wrong = z[best], wrong[best]
            network = self.model.base if turn % 4 == 3 else self.soft
            found, took = self._climb(z, low, high, wrong, y, network, signs=turn % 2 == 0)
            spent, turn = spent + took + SCREENED * self.rows, turn + 1
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
        self,
        z: Tensor,
        low: Tensor,
        high: Tensor,
        wrong: Tensor,
        y: int,
        network: nn.Module,
        *,
        signs: bool,
    ) -> tuple[bool, int]:
        first, second, spent = torch.zeros_like(z), torch.zeros_like(z), 0
        for step in range(1, STEPS + 1):
            points = [z]
            if self.steps:
                points += self.model.rule.path(self.model, z, (0.3, 0.6), wrong).points
                spent += 2 * self.steps * len(z)
            gradient = sum(self._gradient(network, point, wrong) for point in points)
            spent += 2 * len(points) * len(z)
            rate = 0.05 * 0.1 ** (step / STEPS)
            if signs:
                first = 0.75 * first + 0.25 * gradient.sign()
                move = first
            else:
                first = 0.9 * first + 0.1 * gradient
                second = 0.99 * second + 0.01 * gradient.square()
                move = first / (1 - 0.9**step) / ((second / (1 - 0.99**step)).sqrt() + 1e-12)
            z = (z + rate * move).clamp(low, high)
            if step % 5 == 0:
                answer = self.model(z)
                spent += len(z) * (1 + 2 * self.steps)
                if bool((answer.accepted & (answer.logits.argmax(1) != y)).any()):
                    return True, spent
        return False, spent

    def _odds(self, network: nn.Module, z: Tensor, wrong: Tensor) -> Tensor:
        outputs = network(z)[:, :10]
        aim = outputs.gather(1, wrong[:, None])[:, 0]
        return aim - outputs.scatter(1, wrong[:, None], -torch.inf).logsumexp(1)

    def _gradient(self, network: nn.Module, z: Tensor, wrong: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        return torch.autograd.grad(self._odds(network, z, wrong).sum(), z)[0]


def attack(cell: Cell, cap: int) -> dict[str, Any] | None:
    """What the outsider breaks of the images that were left, if the cell was run."""
    folder = PUBLISHED / "thorough" / cell.name
    if not (folder / "result.json").exists():
        return None
    curve = load_result(folder)
    left = curve.records.index[~curve.records.outer_broken].tolist()
    most = min(cap, round(10 * curve.passes_per_image))
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
    parser.add_argument("--most", type=int, default=1_000_000, help="passes per image")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        print(table(asked.out))
        return
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for cell in (c for c in cells() if c.stage == "thorough" and asked.only in c.name):
        file = asked.out / f"{cell.name}.json"
        if not file.exists() and (found := attack(cell, asked.most)) is not None:
            file.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
