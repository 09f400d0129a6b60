"""Runs stages on a block: rows of work in full batches, broken images leave, others move up."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap.attacks.adaptive import KNOWN, Attack, Halving, Stage
from cpr_wrap.evaluation.block import NO_TARGET, Block, Origin
from cpr_wrap.geometry import spread
from cpr_wrap.objective import Goal, Targets, View
from cpr_wrap.solver import Climb

REVISION = 2
"""Part of the key of stored work: raise it when a search may find other points than before."""

_BETWEEN_JUDGEMENTS = 3


def run_stage(block: Block, stage: Stage, seed: int) -> None:
    """Do one stage of an evaluation on a block."""
    if isinstance(stage, Halving):
        block.halve(stage.goal, stage.rounds, stage.name)
    elif isinstance(stage, Attack):
        _run_attack(block, stage, seed)
    else:
        _run_proposer(block, stage, seed)


def _run_proposer(block: Block, stage: Stage, seed: int) -> None:
    assert not isinstance(stage, Attack | Halving)
    goal = Goal.ACCEPTED_MISTAKE
    image = (~block.settled(goal)).nonzero().flatten()
    if len(image) == 0:
        return
    for rows in image.split(block.batch_size):
        points = stage.perturb(
            block.model,
            block.x[rows],
            block.y[rows],
            block.eps,
            norm=block.ball.name,
            seed=seed,
            index=block.index[rows],
        )
        block.consider(rows, points, goal, block.eps, Origin(attack=stage.name))


def _run_attack(block: Block, attack: Attack, seed: int) -> None:
    if attack.rounds:
        _shrink(block, attack, seed)
        return
    for alpha in attack.alphas:
        # A point found in a smaller ball counts in this one too.
        done = block.settled(attack.goal)
        done = done | (block.found[attack.goal].distance <= alpha * block.eps)
        image = (~done).nonzero().flatten()
        radius = torch.full_like(block.found[attack.goal].distance, alpha * block.eps)
        Search(block, attack, image, radius, seed).run()


def _shrink(block: Block, attack: Attack, seed: int) -> None:
    """Look for the goal in ever smaller balls, image by image.

    A success lengthens an image's next stride inwards, a miss halves it: the known radius is
    usually close to the smallest one, and bisecting down from half of it would waste most rounds.
    """
    found, limit = block.found[attack.goal], block.limit(attack.goal)
    stride = torch.full_like(found.distance, attack.stride)
    hopeless = torch.zeros_like(found.known)
    for turn in range(attack.rounds):
        # Where nothing is known yet, the whole ball comes first.
        radius = torch.where(found.known, found.distance * (1 - stride), limit)
        open_ = ~block.settled(attack.goal) & ~hopeless
        image = open_.nonzero().flatten()
        if len(image) == 0:
            return
        known, before = found.known, found.distance.clone()
        Search(block, attack, image, radius, seed, turn=turn).run()
        missed = found.distance >= before
        hopeless = hopeless | (open_ & missed & ~known)
        longer = torch.where(known, (1.5 * stride).clamp_max(0.5), stride)
        stride = torch.where(missed, stride / 2, longer)


@dataclass(frozen=True)
class _Rows:
    """Climbs to be done: parallel tensors `(R,)`, all with the same attack."""

    image: Tensor
    target: Tensor
    start: Tensor

    def take(self, rows: Tensor) -> _Rows:
        return _Rows(self.image[rows], self.target[rows], self.start[rows])

    def join(self, other: _Rows) -> _Rows:
        return _Rows(
            torch.cat([self.image, other.image]),
            torch.cat([self.target, other.target]),
            torch.cat([self.start, other.start]),
        )


@dataclass
class _Candidates:
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

    def take(self, rows: Tensor) -> _Candidates:
        return _Candidates(self.point[rows], self.value[rows], self.hit[rows], self.judged[rows])

    def join(self, other: _Candidates) -> _Candidates:
        return _Candidates(
            torch.cat([self.point, other.point]),
            torch.cat([self.value, other.value]),
            torch.cat([self.hit, other.hit]),
            torch.cat([self.judged, other.judged]),
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
        self.seed, self.turn = seed, turn
        model = block.model
        self.rule = model.rule.stand_in() if attack.steer else model.rule
        # Rules that read their verdict off the outputs know it exactly at every point.
        readable = attack.goal is Goal.MISTAKE or not model.rule.needs_gradient
        self.exact = readable and block.steering.exact
        self.shadow = attack.objective.shadow
        self.rows = self._all_rows(image)
        self.image_of_row: list[int] = self.rows.image.tolist()
        self.poll = 1 if block.x.device.type == "cpu" else 4
        self.best_of_image = _Candidates.none(block.x)

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

    def run(self) -> None:
        """Climb all rows, and judge what they propose."""
        queue = deque(range(len(self.rows.image)))
        ages: list[int] = []
        ticks = 0
        active, climb, candidates = self._refill(queue, None, ages)
        while active is not None and climb is not None and candidates is not None:
            last = all(age == self.attack.iterations - 1 for age in ages)
            self._advance(active, climb, candidates, last)
            ages[:] = [age + 1 for age in ages]
            ticks += 1
            # Asking the device who has arrived would stall it; that a climb is over is known here.
            if ticks % self.poll and max(ages) < self.attack.iterations:
                continue
            stay = self._settle_rows(active, candidates, ages)
            if len(stay) == len(ages):
                continue
            kept = torch.tensor(stay, dtype=torch.int64, device=active.image.device)
            ages[:] = [ages[i] for i in stay]
            state = (active.take(kept), climb.take(kept), candidates.take(kept))
            active, climb, candidates = self._refill(queue, state, ages)
        if self.attack.select == "loss":
            self._propose_best()

    def _refill(
        self,
        queue: deque[int],
        state: tuple[_Rows, Climb, _Candidates] | None,
        ages: list[int],
    ) -> tuple[_Rows | None, Climb | None, _Candidates | None]:
        """Fill the batch up with rows whose images are still open."""
        done = self.block.settled(self.attack.goal).tolist()
        done_in_ball = self._reached().tolist()
        images = self.image_of_row
        new: list[int] = []
        while queue and len(ages) + len(new) < self.block.batch_size:
            row = queue.popleft()
            if not (done[images[row]] or done_in_ball[images[row]]):
                new.append(row)
        if new:
            rows = self.rows.take(torch.tensor(new, device=self.rows.image.device))
            climb = self._launch(rows)
            fresh = (rows, climb, _Candidates.none(climb.x))
            ages.extend([0] * len(new))
            if state is None or len(state[0].image) == 0:
                return fresh
            return (
                state[0].join(fresh[0]),
                state[1].join(fresh[1]),
                state[2].join(fresh[2]),
            )
        if state is None or len(state[0].image) == 0:
            return None, None, None
        return state

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
        # best one at the end is not the only one that may hold.
        due = self.poll > 1 or (attack.iterations - age) % _BETWEEN_JUDGEMENTS == 0
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


def run_stages(block: Block, stages: Iterable[Stage], seed: int) -> None:
    """Do several stages one after the other."""
    for stage in stages:
        run_stage(block, stage, seed)
