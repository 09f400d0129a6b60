"""What a search holds of each of its rows, and where their restarts begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.attacks.donors import FORMS, DonorStarts, NearMisses, nearest
from cpr_wrap.engine.block import Block
from cpr_wrap.geometry import spread
from cpr_wrap.metrics.evidence import DONOR, NEAR_MISS, NO_TARGET, Origin
from cpr_wrap.objective import Aim, Goal, Targets, View, log_prob
from cpr_wrap.solver import PGD, Climb, Columns

NO_POINT = -1
OVERDUE = 1_000_000


@dataclass(frozen=True)
class Rows(Columns):
    """Restarts to be done, all with the same attack."""

    image: Tensor  # which image of the block (R,)
    target: Tensor  # the class to aim at, -1 for none (R,)
    start: Tensor  # where the restart begins, as Origin.start (R,)
    number: Tensor  # which of the search's start points it begins at, -1 for none (R,)


@dataclass
class Candidates(Columns):
    """The most promising point of each restart so far."""

    point: Tensor  # (S, ...)
    value: Tensor  # its objective (S,)
    hit: Tensor  # whether it seems to reach the goal (S,); a hit beats any value
    judged: Tensor  # the objective of the last point that was judged (S,), not to ask twice

    @classmethod
    def none(cls, x: Tensor) -> Candidates:
        """Nothing yet, for rows at `x` `(S, ...)`."""
        low = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        no = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return cls(x.clone(), low, no, low.clone())

    def observe(self, point: Tensor, value: Tensor, hit: Tensor, counts: Tensor) -> None:
        """Look at points; only those that count are kept."""
        value = value.to(self.value.dtype)
        hit = hit & (value > self.judged)
        better = ((hit & ~self.hit) | ((hit == self.hit) & (value > self.value))) & counts
        self.point = torch.where(spread(better, point), point, self.point)
        self.value = torch.where(better, value, self.value)
        self.hit = torch.where(better, hit, self.hit)

    def forget(self, rows: Tensor) -> None:
        """Note that the hits of some rows (mask `(S,)`) have been judged."""
        self.judged = torch.where(rows, torch.maximum(self.judged, self.value), self.judged)
        self.hit = self.hit & ~rows


@dataclass
class Paths(Columns):
    """The rules' own paths from the rows' points, kept for several steps."""

    offset: Tensor  # points of the path less z (S, P, ...)
    since: Tensor  # steps since they were made (S,)

    @classmethod
    def none(cls, x: Tensor, points: int) -> Paths:
        """No path yet, for rows at `x` `(S, ...)` and so many points each."""
        since = torch.full((len(x),), OVERDUE, dtype=torch.int64, device=x.device)
        return cls(x.new_zeros(len(x), points, *x.shape[1:]), since)


@dataclass
class Batch:
    """Rows under way: what they are, where they stand, and what they have come across."""

    rows: Rows
    climb: Climb
    candidates: Candidates
    paths: Paths | None
    ages: list[int]  # how many points each has evaluated; known without asking the device

    def take(self, rows: list[int]) -> Batch:
        """Some of the rows, by position."""
        kept = torch.tensor(rows, dtype=torch.int64, device=self.rows.image.device)
        parts = {name: part and part.take(kept) for name, part in self._parts().items()}
        return Batch(**parts, ages=[self.ages[row] for row in rows])

    def join(self, other: Batch) -> Batch:
        """These rows, and those of another behind them."""
        theirs = other._parts()
        parts = {name: part and part.join(theirs[name]) for name, part in self._parts().items()}
        return Batch(**parts, ages=self.ages + other.ages)

    def state(self) -> dict[str, Any]:
        """All of it as plain data."""
        parts = {name: part and part.columns() for name, part in self._parts().items()}
        return {**parts, "ages": self.ages}

    @classmethod
    def resumed(cls, state: dict[str, Any], pgd: PGD) -> Batch:
        """The batch that a state was taken from."""
        climb, paths = state["climb"], state["paths"]
        return cls(
            Rows(**state["rows"]),
            Climb(climb["x"], climb["radius"], pgd).with_columns(climb),
            Candidates(**state["candidates"]),
            None if paths is None else Paths(**paths),
            state["ages"],
        )

    def _parts(self) -> dict[str, Any]:
        return {name: part for name, part in vars(self).items() if name != "ages"}


def plan(block: Block, attack: Attack, image: Tensor, radius: Tensor) -> tuple[Rows, Tensor]:
    """Lay out the rows of an attack on images `(M,)` of a block, whose radii are `(B,)`.

    Gives the rows, and the points that some of them begin at `(P, ...)`.
    """
    if not len(image):
        return _given(image, image, block.x[:0], NO_TARGET)
    if isinstance(attack.starts, DonorStarts):
        return _from_donors(block, attack, attack.starts, image, radius)
    if isinstance(attack.starts, NearMisses):
        return _from_near_misses(block, attack.starts, image)
    return _fixed(block, attack, attack.starts, image)


def _fixed(
    block: Block, attack: Attack, starts: tuple[int, ...], image: Tensor
) -> tuple[Rows, Tensor]:
    """Likely targets of all images first, unlikely ones last."""
    aims = [torch.full_like(image, NO_TARGET)]
    if attack.objective.targets is not Targets.NONE:
        aims = list(block.order[image][:, : attack.targets].unbind(dim=1))
        if attack.objective.targets is Targets.ALL:
            aims.append(block.y[image])
    pairs = [(start, aim) for start in starts for aim in aims]
    rows = Rows(
        image.repeat(len(pairs)),
        torch.cat([aim for _, aim in pairs]),
        torch.cat([torch.full_like(image, start) for start, _ in pairs]),
        torch.full_like(image, NO_POINT).repeat(len(pairs)),
    )
    return rows, block.x[:0]


def _given(image: Tensor, target: Tensor, points: Tensor, kind: int) -> tuple[Rows, Tensor]:
    number = torch.arange(len(image), device=image.device)
    return Rows(image, target, torch.full_like(image, kind), number), points


def _from_near_misses(block: Block, starts: NearMisses, image: Tensor) -> tuple[Rows, Tensor]:
    """The best ends of earlier restarts, best of all images first."""
    near = block.near
    least = torch.full_like(near.value[:, 0], -torch.inf)
    for rows in image.split(block.batch_size):
        with torch.no_grad():
            view = block.model.rule.view(block.model, block.x[rows], verdict=False)
        least[rows] = -starts.within * view.promise(block.y[rows]).to(least).clamp_min(0)
    images, targets, points = [], [], []
    for rank in range(min(starts.keep, near.value.shape[1])):
        worth = near.value[image, rank]
        known = image[(worth > -torch.inf) & (worth >= least[image])]
        images.append(known)
        targets.append(near.target[known, rank])
        points.append(near.point[known, rank])
    return _given(torch.cat(images), torch.cat(targets), torch.cat(points), NEAR_MISS)


def _from_donors(
    block: Block, attack: Attack, starts: DonorStarts, image: Tensor, radius: Tensor
) -> tuple[Rows, Tensor]:
    """The most promising donors of each image, ranked by the rule's own view of the target."""
    owner, target, points = _candidates(block, starts, image, radius)
    costly = block.model.rule.cost.total > 1
    value = _promise(block, attack, owner, target, points, roughly=costly)
    if costly:
        best = _pick(value, owner, owner, starts.screen + starts.skip).sort().values
        some = owner[best], target[best], points[best]
        looked = torch.full_like(value, -torch.inf)
        looked[best] = _promise(block, attack, *some, roughly=False).to(looked)
        unseen = looked.isneginf()
        # Those that nobody looked at again keep their order among themselves, behind all others.
        floor = looked[~unseen].min() if bool((~unseen).any()) else value.new_zeros(())
        value = torch.where(unseen, floor - 1000 + value.clamp_min(-900), looked)
    chosen = _pick(value, owner, target, starts.keep, skip=starts.skip, distinct=starts.distinct)
    return _given(owner[chosen], target[chosen], points[chosen], DONOR)


def _candidates(
    block: Block, starts: DonorStarts, image: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Every image with every form of its nearest donors: images, targets `(C,)`, points."""
    if block.donors is None:
        return _without_donors(block, starts, image, radius)
    target = block.order[image][:, : starts.targets]
    count = starts.offset + starts.near
    found = nearest(
        block.x[image], target, block.donors, block.eps, block.threat, count, wide=starts.wide
    )
    places, there = (part[..., starts.offset :] for part in found)
    row, column, rank = there.nonzero(as_tuple=True)
    donor = block.donors.images[places[row, column, rank]]
    owner = image[row]
    x, eps = block.x[owner], radius[owner].to(block.x.dtype)
    formed = [FORMS[form](x, donor, eps) for form in starts.forms]
    points = torch.cat([block.threat.project(point, x, eps) for point in formed])
    copies = len(starts.forms)
    none = image[~torch.isin(image, owner)]
    more, aims, random = _without_donors(block, starts, none, radius)
    aim = torch.cat([target[row, column].repeat(copies), aims])
    return torch.cat([owner.repeat(copies), more]), aim, torch.cat([points, random])


def _without_donors(
    block: Block, starts: DonorStarts, image: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Random starts in place of donors, and a note of it."""
    if len(image):
        block.notes.add("some images had no donors of other classes: random starts were used")
    target = block.order[image][:, : starts.keep]
    owner = image.repeat_interleave(target.shape[1])
    aim = target.flatten()
    x = block.x[owner]
    key = noise.keys(starts.offset, block.index[owner], aim)
    offset = block.threat.random_offset(x, radius[owner].to(x.dtype), key) if len(x) else x
    return owner, aim, x + offset


def _promise(
    block: Block, attack: Attack, image: Tensor, target: Tensor, points: Tensor, *, roughly: bool
) -> Tensor:
    """How promising points look `(C,)`: the objective, or for one forward each log p(target)."""
    rule, objective = block.model.rule, attack.objective
    values = []
    with torch.no_grad():
        for rows in torch.arange(len(image), device=image.device).split(block.batch_size):
            aim = Aim(block.y[image[rows]], target[rows])
            if roughly:
                view = rule.view(block.model, points[rows], verdict=False)
                values.append(log_prob(view.logits, aim.target))
                continue
            path = objective.path
            view = rule.view(block.model, points[rows], path=path, label=aim.target)
            values.append(objective.value(view, aim))
            _propose(block, attack.name, view, image[rows], aim.target)
    return torch.cat(values) if values else points.new_zeros(0)


def _propose(block: Block, name: str, view: View, image: Tensor, target: Tensor) -> None:
    """Put starts that are mistakes already to the judge."""
    if view.accepted is None:
        return
    rows = (view.accepted & (view.predicted != block.y[image])).nonzero().flatten()
    rows = rows[~block.settled(Goal.ACCEPTED_MISTAKE)[image[rows]]]
    if len(rows):
        origin = [Origin(attack=name, start=DONOR, target=int(t)) for t in target[rows]]
        goal = Goal.ACCEPTED_MISTAKE
        block.consider(image[rows], view.z.detach()[rows], goal, block.eps, origin)


def _pick(
    value: Tensor,
    image: Tensor,
    target: Tensor,
    keep: int,
    *,
    skip: int = 0,
    distinct: bool = False,
) -> Tensor:
    """Positions of the `keep` best candidates of each image, best of all images first."""
    owners, aims = image.tolist(), target.tolist()
    counts: dict[int, int] = {}
    used: set[tuple[int, int]] = set()
    picked = []
    for place in value.argsort(descending=True, stable=True).tolist():
        owner, aim = owners[place], aims[place]
        if distinct and (owner, aim) in used:
            continue
        used.add((owner, aim))
        counts[owner] = counts.get(owner, 0) + 1
        if skip < counts[owner] <= skip + keep:
            picked.append((counts[owner], place))
    # The best restart of every image comes first, then the second best.
    picked.sort(key=lambda pair: pair[0])
    return torch.tensor([place for _, place in picked], dtype=torch.int64, device=value.device)
