"""Donors: natural images of the target class, from which a search may start, or take pieces.

A restart from the image itself, or from noise, must reach the target class by gradients alone. A
restart from an image of that class, projected into the allowed set, begins near it. Pasting pieces
of such images is a search without gradients. It shares neither gradients nor steps with the other
attacks, so it can check them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap._checks import check_images, check_labels
from cpr_wrap._files import digest
from cpr_wrap.attacks.guests import Group, GroupAttack
from cpr_wrap.geometry import ThreatModel, per_row, spread, threat
from cpr_wrap.objective import Goal


@dataclass(frozen=True, eq=False)
class Donors:
    """Images of known classes."""

    images: Tensor  # (D, ...)
    labels: Tensor  # (D,)
    source: str = "given"  # where they come from, for the result
    first: int | None = None  # of each class for most restarts, all if None; `wide` ones use all
    key: str = field(init=False, default="")

    def __post_init__(self) -> None:
        check_images(self.images, "donors")
        check_labels(self.labels, len(self.images), name="donors' labels")
        first = torch.tensor([self.first or 0])
        key = digest(self.images.float(), self.labels.long(), first)[:16]
        object.__setattr__(self, "key", key)

    def __repr__(self) -> str:
        return f"Donors({self.text})"

    @property
    def text(self) -> str:
        """Source, number and digest."""
        return f"{self.source}, {len(self.labels)} images, {self.key}"

    def to(self, like: Tensor) -> Donors:
        """The same on the device and in the type of some images."""
        labels = self.labels.to(like.device)
        return Donors(self.images.to(like), labels, self.source, self.first)


def nearest(
    x: Tensor,
    target: Tensor,
    donors: Donors,
    eps: float,
    threat: ThreatModel,
    count: int,
    *,
    wide: bool = True,
) -> tuple[Tensor, Tensor]:
    """The `count` donors of each target class `(N, T)` that lie nearest to the allowed sets.

    Looks at all donors if `wide`, else at the first `donors.first` of each class. Returns positions
    among the donors `(N, T, count)`, and whether there are as many `(N, T, count)`.
    """
    places = torch.zeros(*target.shape, count, dtype=torch.int64, device=x.device)
    there = torch.zeros_like(places, dtype=torch.bool)
    for label in target.unique().tolist():
        pool = (donors.labels == label).nonzero().flatten()
        pool = pool if wide else pool[: donors.first]
        image, column = (target == label).nonzero(as_tuple=True)
        if not len(pool):
            continue
        far = threat.excess(donors.images[pool], x[image], eps)
        order = far.argsort(dim=1, stable=True)[:, :count]
        places[image, column, : order.shape[1]] = pool[order]
        there[image, column, : order.shape[1]] = True
    return places, there


def _signs(donor: Tensor, x: Tensor) -> Tensor:
    """Up where a donor is bright, and down elsewhere."""
    return torch.where(donor > 0.25, 1.0, -1.0).to(x.dtype)


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "projected": lambda x, donor, eps: donor,  # noqa: ARG005
    "corner": lambda x, donor, eps: x + 2 * per_row(eps, x) * _signs(donor, x),
    "pushed": lambda x, donor, eps: x + 3 * (donor - x),  # noqa: ARG005
}
"""What of a donor is pulled into the set: itself, the corner on its side, thrice the way to it."""


@dataclass(frozen=True, kw_only=True)
class DonorStarts:
    """Restarts from donors of the target classes, the most promising first."""

    near: int = 6  #: Nearest donors of each class that are tried.
    offset: int = 0  #: Skip this many of the nearest, which other restarts use.
    forms: tuple[str, ...] = ("projected", "corner")  #: How a donor becomes a start.
    #: Of rules with a costly verdict, how many of the best at z are asked about it.
    screen: int = 6
    keep: int = 2  #: Restarts per image.
    skip: int = 0  #: Skip this many of the best, which another stage uses.
    distinct: bool = True  #: Whether the restarts of an image aim at different classes.
    targets: int = 9  #: How many of the likeliest classes donors are taken from.
    wide: bool = False  #: Whether all donors are looked at, also where most restarts use fewer.

    def __post_init__(self) -> None:
        for name in self.forms:
            if name not in FORMS:
                raise ValueError(f"forms: expected names among {', '.join(FORMS)}, got {name!r}")
        least = min(self.near, self.screen, self.keep, self.targets)
        if least < 1 or min(self.skip, self.offset) < 0:
            raise ValueError(f"expected counts of at least 1, got {self}")


@dataclass(frozen=True, kw_only=True)
class NearMisses:
    """Restarts from the best points that earlier searches for mistakes ended at."""

    keep: int = 1  #: Restarts per image.
    #: Leave out points that are farther from success than this share of the clean image's distance
    #: to the other side; more effort is wasted on them.
    within: float = 0.5


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
        x, eps = group.x, group.eps
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
            new = group.model.look(pasted, path=(1.0,)).promise(target).detach()
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
            promise = group.model.look(z, path=(1.0,)).promise(target).detach()
            value = torch.where(target == y, -torch.inf, promise)
            better = value > best[2]
            best = (
                torch.where(spread(better, z), z, best[0]),
                torch.where(better, target, best[1]),
                torch.where(better, value, best[2]),
            )
        return best


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
    flat = spread(torch.where(draw[:, 3] < 0.5, -1.0, 1.0).to(x.dtype), x).expand_as(x)
    painted = torch.where(kind == 0, source, x + 2 * eps * _signs(source, x))
    painted = torch.where(kind == 2, x + 2 * eps * flat, painted)
    return torch.where(kind == 3, x, painted)
