"""One attack on a block: rows of work in full batches, broken images leave, others move up."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from cpr_wrap import noise
from cpr_wrap.attacks.adaptive import KNOWN, Attack
from cpr_wrap.evaluation.block import NO_TARGET, Block, Origin
from cpr_wrap.geometry import spread
from cpr_wrap.objective import Goal, Targets, View
from cpr_wrap.solver import PGD, Climb

_BETWEEN_JUDGEMENTS = 3


class _Parallel:
    """A dataclass of tensors that all have one entry a row."""

    def take(self, rows: Tensor) -> Self:
        """Some of the rows (indices `(M,)`), in that order."""
        return type(self)(*(tensor[rows] for tensor in self._tensors()))

    def join(self, other: Self) -> Self:
        """These rows, and those of another behind them."""
        pairs = zip(self._tensors(), other._tensors(), strict=True)
        return type(self)(*(torch.cat(pair) for pair in pairs))

    def _tensors(self) -> list[Tensor]:
        return list(vars(self).values())


@dataclass(frozen=True)
class _Rows(_Parallel):
    """Climbs to be done: parallel tensors `(R,)`, all with the same attack."""

    image: Tensor
    target: Tensor
    start: Tensor


@dataclass
class _Candidates(_Parallel):
    """The most promising point of each climb so far.

    Attributes:
        point: Points `(S, ...)`.
        value: Their objective `(S,)`.
        hit: Whether they seem to reach the goal `(S,)`; a hit beats any value.
        judged: The objective of the last point that was judged `(S,)`, not to ask twice.
    """

    point: Tensor
    value: Tensor
    hit: Tensor
    judged: Tensor

    @classmethod
    def none(cls, x: Tensor) -> _Candidates:
        low = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        no = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return cls(x.clone(), low, no, low.clone())

    def observe(self, point: Tensor, value: Tensor, hit: Tensor) -> None:
        value = value.to(self.value.dtype)
        hit = hit & (value > self.judged)
        better = (hit & ~self.hit) | ((hit == self.hit) & (value > self.value))
        self.point = torch.where(spread(better, point), point, self.point)
        self.value = torch.where(better, value, self.value)
        self.hit = torch.where(better, hit, self.hit)

    def forget(self, rows: Tensor) -> None:
        """Note that the hits of some rows (mask `(S,)`) have been judged."""
        self.judged = torch.where(rows, torch.maximum(self.judged, self.value), self.judged)
        self.hit = self.hit & ~rows


@dataclass
class _Batch:
    """Rows under way.

    Attributes:
        rows: What they are.
        climb: Where they stand.
        candidates: What they have come across.
        ages: How many points each has evaluated; known without asking the device.
    """

    rows: _Rows
    climb: Climb
    candidates: _Candidates
    ages: list[int]

    def take(self, rows: list[int]) -> _Batch | None:
        if not rows:
            return None
        kept = torch.tensor(rows, dtype=torch.int64, device=self.rows.image.device)
        return _Batch(
            self.rows.take(kept),
            self.climb.take(kept),
            self.candidates.take(kept),
            [self.ages[row] for row in rows],
        )

    def join(self, other: _Batch) -> _Batch:
        return _Batch(
            self.rows.join(other.rows),
            self.climb.join(other.climb),
            self.candidates.join(other.candidates),
            self.ages + other.ages,
        )

    def state(self) -> dict[str, Any]:
        return {
            "rows": vars(self.rows),
            "climb": self.climb.state(),
            "candidates": vars(self.candidates),
            "ages": self.ages,
        }

    @classmethod
    def resumed(cls, state: dict[str, Any], pgd: PGD) -> _Batch:
        return cls(
            _Rows(**state["rows"]),
            Climb.resumed(state["climb"], pgd),
            _Candidates(**state["candidates"]),
            state["ages"],
        )


class Search:
    """One attack on some images of a block, in their own radii, with continuous batching."""

    def __init__(
        self,
        block: Block,
        attack: Attack,
        image: Tensor,
        radius: Tensor,
        seed: int,
        *,
        turn: int = 0,
    ) -> None:
        """Set up the rows.

        Args:
            block: The block.
            attack: The attack.
            image: Images of the block to attack `(M,)`.
            radius: Radius of every image of the block `(B,)`.
            seed: The run's seed.
            turn: Number of this search among those of the same attack, for random starts.
        """
        self.block, self.attack, self.radius = block, attack, radius
        self.seed, self.turn, self.image = seed, turn, image
        model = block.model
        self.rule = model.rule.stand_in() if attack.steer else model.rule
        # Rules that read their verdict off the outputs know it exactly at every point.
        readable = attack.goal is Goal.MISTAKE or not model.rule.needs_gradient
        self.exact = readable and block.steering.exact
        self.shadow = attack.objective.shadow
        self.rows = self._all_rows(image)
        self.image_of_row: list[int] = self.rows.image.tolist()
        self.poll = 1 if block.x.device.type == "cpu" else 4
        self.queue = deque(range(len(self.image_of_row)))
        self.batch: _Batch | None = None
        self.ticks = 0
        self.best_of_image = _Candidates.none(block.x)

    def state(self) -> dict[str, Any]:
        """All that the rest of the search depends on beside the block, as plain data."""
        return {
            "image": self.image,
            "radius": self.radius,
            "left": len(self.queue),
            "batch": None if self.batch is None else self.batch.state(),
            "ticks": self.ticks,
            "best_of_image": vars(self.best_of_image),
        }

    @classmethod
    def resumed(
        cls, state: dict[str, Any], block: Block, attack: Attack, seed: int, *, turn: int = 0
    ) -> Search:
        """The search that a state was taken from."""
        search = cls(block, attack, state["image"], state["radius"], seed, turn=turn)
        count = len(search.queue)
        search.queue = deque(range(count - state["left"], count))
        if state["batch"] is not None:
            search.batch = _Batch.resumed(state["batch"], attack.pgd(block.ball.name))
        search.ticks = state["ticks"]
        search.best_of_image = _Candidates(**state["best_of_image"])
        return search

    def _all_rows(self, image: Tensor) -> _Rows:
        """Likely targets of all images first, unlikely ones last."""
        attack, block = self.attack, self.block
        aims = [torch.full_like(image, NO_TARGET)]
        if attack.objective.targets is not Targets.NONE:
            wanted = block.order[image][:, : attack.targets]
            aims = list(wanted.unbind(dim=1))
            if attack.objective.targets is Targets.ALL:
                aims.append(block.y[image])
        pairs = [(start, aim) for start in attack.starts for aim in aims]
        return _Rows(
            image.repeat(len(pairs)),
            torch.cat([aim for _, aim in pairs]),
            torch.cat([torch.full_like(image, start) for start, _ in pairs]),
        )

    def _launch(self, rows: _Rows) -> Climb:
        """Put rows at their starts."""
        block, attack = self.block, self.attack
        x, radius = block.x[rows.image], self.radius[rows.image].to(block.x.dtype)
        key = noise.keys(
            self.seed,
            zlib.crc32(attack.name.encode()),
            block.index[rows.image],
            rows.target,
            rows.start,
            self.turn,
        )
        start = x
        if any(n > 0 for n in attack.starts):
            offset = block.ball.random_offset(x, radius, key)
            start = torch.where(spread(rows.start > 0, x), x + offset, start)
        if KNOWN in attack.starts:
            start = torch.where(spread(rows.start == KNOWN, x), self._known(rows.image), start)
        step = torch.full_like(radius, block.eps) if attack.step_of_eps else radius
        return Climb(
            x, radius, attack.pgd(block.ball.name), start=start, step_size=step * attack.step
        )

    def _known(self, image: Tensor) -> Tensor:
        """The best known point for this goal, or else the one on the network's boundary."""
        found = self.block.found[self.attack.goal]
        boundary = self.block.found[Goal.MISTAKE]
        known = spread(found.known[image], self.block.x)
        return torch.where(known, found.point[image], boundary.point[image])

    def advance(self) -> bool:
        """Evaluate and move every row of the batch once, and judge what is ripe.

        Returns:
            Whether anything was left to do.
        """
        if self.batch is None:
            self.batch = self._refill(None)
        if self.batch is None:
            if self.attack.select == "loss":
                self._propose_best()
            return False
        batch, most = self.batch, self.attack.iterations
        last = all(age == most - 1 for age in batch.ages)
        self._advance(batch.rows, batch.climb, batch.candidates, last)
        batch.ages = [age + 1 for age in batch.ages]
        self.ticks += 1
        # Asking the device who has arrived would stall it; that a climb is over is known here.
        if self.ticks % self.poll and max(batch.ages) < most:
            return True
        stay = self._settle_rows(batch.rows, batch.candidates, batch.ages)
        if len(stay) < len(batch.ages):
            self.batch = self._refill(batch.take(stay))
        return True

    def _refill(self, batch: _Batch | None) -> _Batch | None:
        """Fill the batch up with rows whose images are still open."""
        done = self.block.settled(self.attack.goal).tolist()
        done_in_ball = self._reached().tolist()
        images = self.image_of_row
        room = self.block.batch_size - (0 if batch is None else len(batch.ages))
        new: list[int] = []
        while self.queue and len(new) < room:
            row = self.queue.popleft()
            if not (done[images[row]] or done_in_ball[images[row]]):
                new.append(row)
        if not new:
            return batch
        rows = self.rows.take(torch.tensor(new, device=self.rows.image.device))
        climb = self._launch(rows)
        fresh = _Batch(rows, climb, _Candidates.none(climb.x), [0] * len(new))
        return fresh if batch is None else batch.join(fresh)

    def _reached(self) -> Tensor:
        """Images for which this search has what it came for `(B,)`."""
        if self.attack.select == "loss":
            return torch.zeros(len(self.block), dtype=torch.bool, device=self.block.x.device)
        return self.block.found[self.attack.goal].distance <= self.radius

    def _advance(self, active: _Rows, climb: Climb, candidates: _Candidates, last: bool) -> None:
        """Evaluate every row, note candidates, take a step."""
        z = climb.z.detach().requires_grad_()
        y = self.block.y[active.image]
        objective = self.attack.objective
        with torch.enable_grad(), self.block.steering.context(z.device):
            view = self.rule.view(self.block.searcher, z, shadow=self.shadow)
            if last:
                value = torch.stack(objective.terms(view, y, active.target)).sum(dim=0).detach()
            else:
                value, gradient = objective.ascent(view, y, active.target, z)
        candidates.observe(z.detach(), value, self._seems_to_hit(view, y))
        if not last:
            climb.step(value, gradient)

    def _seems_to_hit(self, view: View, y: Tensor) -> Tensor:
        """What the steering view says about the goal, or suspects where it has no verdict."""
        goal, predicted = self.attack.goal, view.predicted
        if self.attack.select == "loss":
            return torch.zeros_like(predicted, dtype=torch.bool)
        if goal is Goal.MISTAKE or (view.accepted is None and goal is Goal.ACCEPTED_MISTAKE):
            return predicted != y
        if view.accepted is None:
            return torch.zeros_like(predicted, dtype=torch.bool)
        return goal.reached(predicted, view.accepted, y)

    def _settle_rows(self, active: _Rows, candidates: _Candidates, ages: list[int]) -> list[int]:
        """Judge what is ripe; return the rows (positions in the batch) that climb on."""
        attack = self.attack
        device = active.image.device
        age = torch.tensor(ages, device=device)
        ended = age >= attack.iterations
        if attack.select == "loss":
            self._collect(active, candidates, ended)
            return (~ended).nonzero().flatten().tolist()
        # Judging costs as much as a good part of a climb, so that not every hit is judged; but the
        # best one at the end is not the only one that may hold. Where a hit is no more than a wrong
        # prediction, the first one and the best one must do.
        due = candidates.judged.isneginf()
        if self.shadow:
            due = due | (self.poll > 1) | ((attack.iterations - age) % _BETWEEN_JUDGEMENTS == 0)
        midway = (age >= (attack.iterations + 1) // 2) & due
        ripe = candidates.hit & (self.exact | ended | midway)
        if attack.goal is Goal.REJECTED and not self.exact:
            # A stand-in for T flips less than T itself: ask about the best point in any case.
            ripe = ripe | ended
        if bool(ripe.any()):
            picks = ripe.nonzero().flatten()
            self._judge(active.take(picks), candidates.take(picks))
            candidates.forget(ripe)
        done = self.block.settled(attack.goal) | self._reached()
        over = ended | done[active.image]
        if self.exact:
            over = over | ripe
        return (~over).nonzero().flatten().tolist()

    def _judge(self, rows: _Rows, candidates: _Candidates) -> None:
        radius = self.radius[rows.image]
        origin = [
            Origin(attack=self.attack.name, start=int(s), alpha=float(r) / self.block.eps)
            for s, r in zip(rows.start.tolist(), radius.tolist(), strict=True)
        ]
        self.block.consider(
            rows.image, candidates.point, self.attack.goal, radius, origin, rows.target
        )

    def _collect(self, active: _Rows, candidates: _Candidates, ended: Tensor) -> None:
        """Keep the point of the largest objective for each image, over starts and targets."""
        best = self.best_of_image
        for row in ended.nonzero().flatten().tolist():
            image = int(active.image[row])
            if candidates.value[row] > best.value[image]:
                best.value[image] = candidates.value[row]
                best.point[image] = candidates.point[row]
                best.hit[image] = True

    def _propose_best(self) -> None:
        image = self.best_of_image.hit.nonzero().flatten()
        if len(image):
            self.block.consider(
                image,
                self.best_of_image.point[image],
                self.attack.goal,
                self.radius[image],
                Origin(attack=self.attack.name),
            )
