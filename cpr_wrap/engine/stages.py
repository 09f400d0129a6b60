"""Runs stages on a block, tick by tick: between two ticks a stage is plain data, fit for a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

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
from cpr_wrap.engine.search import Search
from cpr_wrap.geometry import per_row
from cpr_wrap.metrics.evidence import NO_TARGET, Origin
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier

REVISION = 10
"""Part of the key of stored work: raise it when a search may find other points than before."""

State = dict[str, Any]
"""Tensors, numbers and texts, in lists and dictionaries."""


class StageRun(ABC):
    """A stage under way. What it does next depends on the block and on its state alone."""

    held: ClassVar[tuple[str, ...]] = ()  # the attributes that are its state

    @abstractmethod
    def advance(self) -> bool:
        """Do a little, about one batch; return whether anything was left to do."""

    def state(self) -> State:
        """Where the run is; it shares memory with the run."""
        return {name: getattr(self, name) for name in self.held}

    def resume(self, state: State) -> None:
        """Go to where a run of the same stage on the same block was."""
        for name in self.held:
            setattr(self, name, state[name])


def run_stage(
    block: Block,
    stage: Stage | GivenPoints,
    seed: int,
    *,
    state: State | None = None,
    after_tick: Callable[[StageRun], None] | None = None,
) -> None:
    """Do one stage of an evaluation on a block, and tell `after_tick` after every tick.

    It goes on from `state` if the stage has been under way; the block must be as it was then. The
    state is emptied, for its tensors would take up memory as long as the stage lasts.
    """
    run = _begin(block, stage, seed)
    if state is not None:
        run.resume(state)
        state.clear()
    while run.advance():
        if after_tick is not None:
            after_tick(run)


def _begin(block: Block, stage: Stage | GivenPoints, seed: int) -> StageRun:
    if isinstance(stage, GivenPoints):
        return _GivenRun(block, stage)
    if isinstance(stage, Halving):
        return _HalvingRun(block, stage)
    if isinstance(stage, Attack):
        return (_Shrinking if stage.rounds else _AtAlphas)(block, stage, seed)
    return _ProposerRun(block, stage, seed)


class _AtAlphas(StageRun):
    """One search after the other, at every alpha of an attack."""

    held: ClassVar[tuple[str, ...]] = ("turn",)

    def __init__(self, block: Block, attack: Attack, seed: int) -> None:
        self.block, self.attack, self.seed = block, attack, seed
        self.found = block.found[attack.goal]
        self.turn = 0
        self.search: Search | None = None

    def advance(self) -> bool:
        if self.search is None:
            self.search = self._next()
        if self.search is None:
            return False
        if not self.search.advance():
            self._learn()
            self.search = None
            self.turn += 1
        return True

    def _next(self) -> Search | None:
        if self.turn == len(self.attack.alphas):
            return None
        block, goal = self.block, self.attack.goal
        reach = self.attack.alphas[self.turn] * block.eps
        # A point found in a smaller ball counts in this one too.
        done = block.settled(goal) | (self.found.distance <= reach)
        done = done | ~noise.sampled(block.index, self.attack.sample)
        radius = torch.full_like(self.found.distance, reach)
        return Search(block, self.attack, (~done).nonzero().flatten(), radius, self.seed)

    def _learn(self) -> None:
        """Draw conclusions from a search that is over."""

    @property
    def _number(self) -> int:
        """The search's number for random starts: the same ones at every alpha."""
        return 0

    def state(self) -> State:
        search = None if self.search is None else self.search.state()
        return {**super().state(), "search": search}

    def resume(self, state: State) -> None:
        super().resume(state)
        if state["search"] is not None:
            self.search = Search.resumed(
                state["search"], self.block, self.attack, self.seed, turn=self._number
            )


class _Shrinking(_AtAlphas):
    """Looks for the goal in ever smaller balls, image by image.

    A success lengthens an image's next stride inward, a miss halves it: the known radius is
    usually close to the smallest one, and bisecting down from half of it would waste most rounds.
    """

    held = ("turn", "stride", "hopeless", "open", "before")

    def __init__(self, block: Block, attack: Attack, seed: int) -> None:
        super().__init__(block, attack, seed)
        self.stride = torch.full_like(self.found.distance, attack.stride)
        self.hopeless = torch.zeros_like(self.found.known)
        self.open = ~self.hopeless  # images of the search under way
        self.before = self.found.distance  # what was known when it began

    def _next(self) -> Search | None:
        if self.turn == self.attack.rounds:
            return None
        found, goal = self.found, self.attack.goal
        # Where nothing is known yet, the whole ball comes first.
        limit = self.block.limit(goal)
        radius = torch.where(found.known, found.distance * (1 - self.stride), limit)
        self.open = ~self.block.settled(goal) & ~self.hopeless
        self.open = self.open & noise.sampled(self.block.index, self.attack.sample)
        image = self.open.nonzero().flatten()
        if len(image) == 0:
            return None
        self.before = found.distance.clone()
        return Search(self.block, self.attack, image, radius, self.seed, turn=self._number)

    def _learn(self) -> None:
        known = self.before.isfinite()
        missed = self.found.distance >= self.before
        self.hopeless = self.hopeless | (self.open & missed & ~known)
        longer = torch.where(known, (1.5 * self.stride).clamp_max(0.5), self.stride)
        self.stride = torch.where(missed, self.stride / 2, longer)

    @property
    def _number(self) -> int:
        return self.turn


class _ProposerRun(StageRun):
    """An attack from elsewhere, batch by batch."""

    held = ("image", "done")

    def __init__(self, block: Block, stage: Proposer, seed: int) -> None:
        self.block, self.stage, self.seed = block, stage, seed
        self.goal = goal_of(stage)
        self.image = (~block.settled(self.goal)).nonzero().flatten()
        self.done = 0

    def advance(self) -> bool:
        block = self.block
        rows = self.image[self.done : self.done + block.batch_size]
        if len(rows) == 0:
            return False
        images = Images(x=block.x[rows], y=block.y[rows], index=block.index[rows])
        threat = (block.eps, block.threat.name)
        points = proposals(self.stage, block.model, images, *threat, self.seed)
        origin = Origin(attack=self.stage.name)
        block.consider(rows, points, self.goal, block.eps, origin)
        self.done += len(rows)
        return True


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


class _GivenRun(StageRun):
    """Judges points that were found elsewhere."""

    held = ("done",)

    def __init__(self, block: Block, stage: GivenPoints) -> None:
        self.block, self.stage = block, stage
        place = {number: row for row, number in enumerate(block.index.tolist())}
        pairs = [(n, place[i]) for n, i in enumerate(stage.index.tolist()) if i in place]
        self.number = torch.tensor([n for n, _ in pairs], dtype=torch.int64)
        self.image = torch.tensor([row for _, row in pairs], device=block.x.device).long()
        self.done = 0

    def advance(self) -> bool:
        block, turn = self.block, slice(self.done, self.done + self.block.batch_size)
        image = self.image[turn]
        if len(image) == 0:
            return False
        points = self.stage.points[self.number[turn]].to(block.x)
        origin = Origin(attack=self.stage.name, run=self.stage.source)
        block.consider(image, points, self.stage.goal, block.eps, origin)
        self.done += len(image)
        return True


class _HalvingRun(StageRun):
    """Walks from known points toward the images while the goal stays reached."""

    held = ("image", "far", "low", "high", "turn")

    def __init__(self, block: Block, stage: Halving) -> None:
        self.block, self.stage = block, stage
        goal = stage.goal
        far, start = block.found[goal].point.clone(), block.found[goal].known
        self.turn = 0
        if goal is Goal.REJECTED:
            # No rejected point yet: the network's boundary is where one is likeliest. Such borrowed
            # points have not been judged for this goal, so there is one more turn.
            self.turn = -1
            boundary = block.found[Goal.MISTAKE]
            borrow = boundary.known & ~start
            far[borrow] = boundary.point[borrow]
            start = start | borrow
        self.image = (start & ~block.settled(goal)).nonzero().flatten()
        self.far = block.threat.project(far[self.image], block.x[self.image], block.limit(goal))
        self.low = self._surely_inside().to(block.x.dtype)
        self.high = torch.ones_like(self.low)

    def _surely_inside(self) -> Tensor:
        """Share of the way `(M,)` on which the goal need not be asked about.

        A rule that rejects near the network's boundary alone cannot be made to reject much farther
        from it than its reach; a third of it is left for boundaries nearer by another way.
        """
        block = self.block
        boundary = block.found[Goal.MISTAKE].distance[self.image]
        borrowed = ~block.found[self.stage.goal].known[self.image] & boundary.isfinite()
        borrowed = borrowed & block.model.rule.rejects_near_boundary
        share = 1 - 1.3 * block.rule_reach / boundary.clamp_min(1e-12)
        return torch.where(borrowed, share.clamp_min(0), torch.zeros_like(share))

    def advance(self) -> bool:
        if len(self.image) == 0 or self.turn == self.stage.rounds:
            return False
        if self.turn < 0:
            self._ask(self.far)
        else:
            x = self.block.x[self.image]
            middle = (self.low + self.high) / 2
            hit = self._ask(x + per_row(middle, x) * (self.far - x))
            self.high = torch.where(hit, middle, self.high)
            self.low = torch.where(hit, self.low, middle)
        self.turn += 1
        return True

    def _ask(self, points: Tensor) -> Tensor:
        goal = self.stage.goal
        origin = Origin(attack=self.stage.name, start=NO_TARGET)
        return self.block.consider(self.image, points, goal, self.block.limit(goal), origin)
