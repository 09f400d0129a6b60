"""Donors: natural images of the target class, from which a search may start.

A restart from the image itself, or from noise, must reach the target class by gradients alone. A
restart from an image of that class, projected into the allowed set, begins near it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cpr_wrap._checks import check_images, check_labels
from cpr_wrap._files import digest
from cpr_wrap.geometry import ThreatModel, per_row


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


def per_class(images: Tensor, labels: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The first `most` images of every class, class by class."""
    classes = labels.unique().tolist()
    rows = torch.cat([(labels == label).nonzero().flatten()[:most] for label in classes])
    return images[rows], labels[rows]


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


Form = Callable[[Tensor, Tensor, Tensor | float, ThreatModel], Tensor]


def _projected(x: Tensor, donor: Tensor, eps: Tensor | float, threat: ThreatModel) -> Tensor:
    """The donor itself, pulled into the set."""
    return threat.project(donor, x, eps)


def _corner(x: Tensor, donor: Tensor, eps: Tensor | float, threat: ThreatModel) -> Tensor:
    """Every pixel pushed as far as allowed, up where the donor is bright and down elsewhere."""
    sign = torch.where(donor > 0.25, 1.0, -1.0).to(x.dtype)
    return threat.project(x + 2 * per_row(eps, x) * sign, x, eps)


def _pushed(x: Tensor, donor: Tensor, eps: Tensor | float, threat: ThreatModel) -> Tensor:
    """Three times the way to the donor, pulled into the set."""
    return threat.project(x + 3 * (donor - x), x, eps)


FORMS: dict[str, Form] = {"projected": _projected, "corner": _corner, "pushed": _pushed}


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
