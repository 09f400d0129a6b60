"""A search without gradients: pieces of natural images of another class are pasted in.

It shares neither gradients nor steps with the other attacks, so it can check them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap.attacks.donors import Donors
from cpr_wrap.attacks.guests import Group, GroupAttack
from cpr_wrap.geometry import spread, threat
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier

_LARGEST, _SMALLEST = 0.5, 0.08  # side of a pasted square, as a share of the image's


@dataclass(frozen=True)
class PastedPatches(GroupAttack):
    """Paste squares of other images, or of extreme pixels, and keep what the rule likes better."""

    donors: Donors  # images of all classes to paste from
    queries: int = 100  # verdicts asked for each image
    near: int = 8  # how many of the nearest images of other classes are tried as starts
    goal: Goal = Goal.ACCEPTED_MISTAKE

    name = "pasted patches"

    def _points(self, group: Group) -> Tensor:
        model, x, eps = group.model, group.x, group.eps
        around, donors = threat(group.norm), self.donors.to(x)
        z, target, value = self._start(group, donors)
        pools = {
            t: (donors.labels == t).nonzero().flatten() for t in donors.labels.unique().tolist()
        }
        for query in range(max(0, self.queries - self.near)):
            draw = noise.uniform(noise.keys(group.seed, 77, group.index, query), 5)
            drawn = zip(target.tolist(), draw[:, 4].tolist(), strict=True)
            places = [int(pools[label][int(share * len(pools[label]))]) for label, share in drawn]
            source = donors.images[places]
            mask = _square(x, draw, query / self.queries)
            pasted = around.project(torch.where(mask, _paint(x, source, eps, draw), z), x, eps)
            new = _promise(model, pasted, target)
            better = (new >= value) & (value < 0)
            z = torch.where(spread(better, z), pasted, z)
            value = torch.where(better, new, value)
            if bool((value >= 0).all()):
                break
        return z

    def _start(self, group: Group, donors: Donors) -> tuple[Tensor, Tensor, Tensor]:
        """The most promising of the nearest images of other classes: points, targets, promise."""
        x, y, eps, around = group.x, group.y, group.eps, threat(group.norm)
        lost = []
        for row in x:
            inside = around.project(donors.images, row.expand_as(donors.images), eps)
            lost.append((inside - donors.images).abs().flatten(1).sum(dim=1))
        far = torch.stack(lost).masked_fill(donors.labels[None] == y[:, None], torch.inf)
        nearest = far.argsort(dim=1, stable=True)[:, : self.near]
        best = x.clone(), y.clone(), x.new_full((len(x),), -torch.inf)
        for place in nearest.unbind(dim=1):
            target = donors.labels[place]
            z = around.project(donors.images[place], x, eps)
            value = torch.where(target == y, -torch.inf, _promise(group.model, z, target))
            better = value > best[2]
            best = (
                torch.where(spread(better, z), z, best[0]),
                torch.where(better, target, best[1]),
                torch.where(better, value, best[2]),
            )
        return best


def _promise(model: SelectiveClassifier, z: Tensor, target: Tensor) -> Tensor:
    """How near points are to being accepted as a class `(N,)`."""
    with torch.no_grad():
        found: Tensor = model.look(z, path=(1.0,)).promise(target)
    return found


def _square(x: Tensor, draw: Tensor, progress: float) -> Tensor:
    """Masks of one square per image, smaller as the search goes on, shaped to broadcast."""
    height, width = x.shape[-2:] if x.dim() > 3 else (1, x[0].numel())
    share = _LARGEST * (_SMALLEST / _LARGEST) ** progress
    masks = []
    for size, place in ((height, draw[:, 0]), (width, draw[:, 1])):
        side = max(1, round(share * size))
        first = (place * (size - side + 1)).long()[:, None]
        at = torch.arange(size, device=x.device)
        masks.append((at >= first) & (at < first + side))
    square: Tensor = masks[0][:, None, :, None] & masks[1][:, None, None, :]
    return square.expand_as(x) if x.dim() > 3 else square.reshape(len(x), *x.shape[1:])


def _paint(x: Tensor, source: Tensor, eps: float, draw: Tensor) -> Tensor:
    """What is pasted: the other image, or its extremes, or the image as it was."""
    kind = spread((draw[:, 2] * 4).long(), x)
    signs = torch.where(source > 0.25, 1.0, -1.0).to(x.dtype)
    flat = spread(torch.where(draw[:, 3] < 0.5, -1.0, 1.0).to(x.dtype), x).expand_as(x)
    painted = torch.where(kind == 0, source, x + 2 * eps * signs)
    painted = torch.where(kind == 2, x + 2 * eps * flat, painted)
    return torch.where(kind == 3, x, painted)
