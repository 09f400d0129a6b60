"""Runs stages on a block, tick by tick: between two ticks a stage is plain data, fit for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap.attacks.adaptive import (
    Attack,
    FunctionAttack,
    GivenPoints,
    Halving,
    Proposer,
    Stage,
    goal_of,
)
from cpr_wrap.engine.block import Block
from cpr_wrap.engine.images import Images
from cpr_wrap.engine.precision import is_out_of_memory
from cpr_wrap.engine.search import Search, begin
from cpr_wrap.geometry import per_row
from cpr_wrap.metrics.evidence import NO_TARGET, Origin
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier

REVISION = 10
"""Part of the key of stored work: raise it when a search may find other points than before."""

State = dict[str, Any]
"""Tensors, numbers and texts, in lists and dictionaries."""


def run_stage(
    block: Block,
    stage: Stage | GivenPoints,
    seed: int,
    *,
    state: State | None = None,
    after_tick: Callable[[Callable[[], State]], None] | None = None,
) -> None:
    """Do one stage of an evaluation on a block, about one batch at a tick.

    After every tick, `after_tick` gets a function that tells the state; it shares memory with the
    stage. The stage goes on from `state` if it has been under way; the block must be as it was
    then. The state is emptied, for its tensors would take up memory as long as the stage lasts.
    """
    at = SimpleNamespace(**(state or {}))
    if state is not None:
        state.clear()
    for _ in _ticks(block, stage, seed, at):
        if after_tick is not None:
            after_tick(lambda: _plain(at))


def _plain(at: SimpleNamespace) -> State:
    return {k: v.state() if isinstance(v, Search) else v for k, v in vars(at).items()}


def _ticks(
    block: Block, stage: Stage | GivenPoints, seed: int, at: SimpleNamespace
) -> Iterator[None]:
    """Do a stage tick by tick; what it does next depends on the block and on `at` alone.

    A stage that finds `at` empty is at its beginning.
    """
    if isinstance(stage, GivenPoints):
        return _judge_given(block, stage, at)
    if isinstance(stage, Halving):
        return _halve(block, stage, at)
    if isinstance(stage, Attack):
        return (_shrink if stage.rounds else _search_at_alphas)(block, stage, seed, at)
    return _propose(block, stage, seed, at)


def _search_at_alphas(
    block: Block, attack: Attack, seed: int, at: SimpleNamespace
) -> Iterator[None]:
    """One search after the other, at every alpha of an attack, with the same random starts."""
    found = block.found[attack.goal]
    if not vars(at):
        at.turn, at.search = 0, None
    while at.turn < len(attack.alphas):
        if at.search is None:
            reach = attack.alphas[at.turn] * block.eps
            # A point found in a smaller ball counts in this one too.
            done = block.settled(attack.goal) | (found.distance <= reach)
            done = done | ~noise.sampled(block.index, attack.sample)
            radius = torch.full_like(found.distance, reach)
            at.search = begin(block, attack, (~done).nonzero().flatten(), radius)
        at.search = Search(block, attack, at.search, seed)
        while at.search.advance():
            yield
        at.search = None
        at.turn += 1
        yield


def _shrink(block: Block, attack: Attack, seed: int, at: SimpleNamespace) -> Iterator[None]:
    """Look for the goal in ever smaller balls, image by image.

    A success lengthens an image's next stride inward, a miss halves it: the known radius is
    usually close to the smallest one, and bisecting down from half of it would waste most rounds.
    """
    found = block.found[attack.goal]
    if not vars(at):
        at.turn, at.search = 0, None
        at.stride = torch.full_like(found.distance, attack.stride)
        at.hopeless = torch.zeros_like(found.known)
    while at.turn < attack.rounds:
        if at.search is None:
            # Where nothing is known yet, the whole ball comes first.
            limit = block.limit(attack.goal)
            radius = torch.where(found.known, found.distance * (1 - at.stride), limit)
            at.open = ~block.settled(attack.goal) & ~at.hopeless
            at.open = at.open & noise.sampled(block.index, attack.sample)
            image = at.open.nonzero().flatten()
            if len(image) == 0:
                return
            at.before = found.distance.clone()  # what is known when the search begins
            at.search = begin(block, attack, image, radius)
        at.search = Search(block, attack, at.search, seed, turn=at.turn)
        while at.search.advance():
            yield
        known = at.before.isfinite()
        missed = found.distance >= at.before
        at.hopeless = at.hopeless | (at.open & missed & ~known)
        longer = torch.where(known, (1.5 * at.stride).clamp_max(0.5), at.stride)
        at.stride = torch.where(missed, at.stride / 2, longer)
        at.search = None
        at.turn += 1
        yield


def _propose(block: Block, stage: Proposer, seed: int, at: SimpleNamespace) -> Iterator[None]:
    """Run an attack from elsewhere, batch by batch."""
    goal = goal_of(stage)
    if not vars(at):
        at.image, at.done = (~block.settled(goal)).nonzero().flatten(), 0
    while len(rows := at.image[at.done : at.done + block.batch_size]):
        images = Images(x=block.x[rows], y=block.y[rows], index=block.index[rows])
        points = proposals(stage, block.model, images, block.eps, block.threat.name, seed)
        block.consider(rows, points, goal, block.eps, Origin(attack=stage.name))
        at.done += len(rows)
        yield


def from_outside(stage: Stage | GivenPoints) -> bool:
    """Whether an attack is somebody's own code, and nobody has tried it yet."""
    own = type(stage).__module__.partition(".")[0] == "cpr_wrap"
    return isinstance(stage, FunctionAttack) or not own


def proposals(
    stage: Proposer, model: SelectiveClassifier, images: Images, eps: float, norm: str, seed: int
) -> Tensor:
    """One point per image `(M, ...)`; refuses what would pass for an attack that finds nothing."""
    name, x = f"attack {stage.name!r}", images.x
    threat: dict[str, Any] = {"norm": norm, "seed": seed, "index": images.index}
    try:
        points: object = stage.perturb(model, x, images.y, eps, **threat)
    except Exception as error:
        if is_out_of_memory(error) or not from_outside(stage):
            raise
        raise RuntimeError(f"{name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(points, Tensor):
        raise TypeError(f"{name}: expected a tensor of points, got {type(points).__name__}")
    if points.shape != x.shape:
        raise ValueError(
            f"{name}: expected one point per image, shape {tuple(x.shape)}, "
            f"got shape {tuple(points.shape)}"
        )
    if not bool(points.isfinite().all()):
        raise ValueError(f"{name}: expected finite points, got NaN or infinity")
    return points.to(x)


def _judge_given(block: Block, stage: GivenPoints, at: SimpleNamespace) -> Iterator[None]:
    """Judge points that were found elsewhere, batch by batch."""
    place = {number: row for row, number in enumerate(block.index.tolist())}
    pairs = [(n, place[i]) for n, i in enumerate(stage.index.tolist()) if i in place]
    number = torch.tensor([n for n, _ in pairs], dtype=torch.int64)
    image = torch.tensor([row for _, row in pairs], device=block.x.device).long()
    origin = Origin(attack=stage.name, run=stage.source)
    if not vars(at):
        at.done = 0
    while at.done < len(image):
        turn = slice(at.done, at.done + block.batch_size)
        points = stage.points[number[turn]].to(block.x)
        block.consider(image[turn], points, stage.goal, block.eps, origin)
        at.done += len(points)
        yield


def _halve(block: Block, stage: Halving, at: SimpleNamespace) -> Iterator[None]:
    """Walk from known points toward the images while the goal stays reached."""
    goal = stage.goal
    origin = Origin(attack=stage.name, start=NO_TARGET)
    if not vars(at):
        _begin_halving(block, goal, at)
    while len(at.image) and at.turn < stage.rounds:
        # Before the first turn, points that were borrowed from another goal are judged.
        x = block.x[at.image]
        middle = (at.low + at.high) / 2
        points = at.far if at.turn < 0 else x + per_row(middle, x) * (at.far - x)
        hit = block.consider(at.image, points, goal, block.limit(goal), origin)
        if at.turn >= 0:
            at.high = torch.where(hit, middle, at.high)
            at.low = torch.where(hit, at.low, middle)
        at.turn += 1
        yield


def _begin_halving(block: Block, goal: Goal, at: SimpleNamespace) -> None:
    """Choose images and the points to walk from."""
    known, boundary = block.found[goal], block.found[Goal.MISTAKE]
    far, start, at.turn = known.point.clone(), known.known, 0
    if goal is Goal.REJECTED:
        # No rejected point yet: the network's boundary is where one is likeliest. Such borrowed
        # points have not been judged for this goal, so there is one more turn.
        at.turn = -1
        borrow = boundary.known & ~start
        far[borrow] = boundary.point[borrow]
        start = start | borrow
    at.image = (start & ~block.settled(goal)).nonzero().flatten()
    at.far = block.threat.project(far[at.image], block.x[at.image], block.limit(goal))
    # The share of the way on which the goal need not be asked about: a rule that rejects near the
    # network's boundary alone cannot be made to reject much farther from it than its reach; a third
    # of it is left for boundaries nearer by another way.
    distance = boundary.distance[at.image]
    borrowed = ~known.known[at.image] & distance.isfinite()
    borrowed = borrowed & block.model.rule.rejects_near_boundary
    share = (1 - 1.3 * block.rule_reach / distance.clamp_min(1e-12)).clamp_min(0)
    at.low = torch.where(borrowed, share, torch.zeros_like(share)).to(block.x.dtype)
    at.high = torch.ones_like(at.low)
