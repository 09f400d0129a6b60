"""A block of images under evaluation: what is known of each, and the only place that judges."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from cpr_wrap.evaluation.steering import Steering
from cpr_wrap.geometry import Ball, ball
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier

NO_TARGET = -1


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a proposed point comes from, as it is recorded.

    Attributes:
        attack: Name of the attack.
        start: Its start (0 the image, n the n-th random start, -1 a known point).
        alpha: The radius it was searched in, as a share of eps.
    """

    attack: str
    start: int = 0
    alpha: float = 1.0


CLEAN = Origin(attack="clean", alpha=0.0)


class Found:
    """The closest point to each image that reaches one goal.

    Attributes:
        point: Points `(B, ...)`; the image itself where none is known.
        distance: Their distances, float64 `(B,)`; infinity where none is known.
        origin: Where each comes from, or None.
        target: The class each aimed at, -1 for none `(B,)`.
    """

    def __init__(self, x: Tensor) -> None:
        self.point = x.clone()
        wide = torch.float32 if x.device.type == "mps" else torch.float64
        self.distance = torch.full((len(x),), torch.inf, dtype=wide, device=x.device)
        self.origin: list[Origin | None] = [None] * len(x)
        self.target = [NO_TARGET] * len(x)

    @property
    def known(self) -> Tensor:
        """Whether there is a point `(B,)`."""
        return self.distance.isfinite()

    def cpu(self) -> Found:
        """The same on the CPU."""
        result = copy.copy(self)
        result.point, result.distance = self.point.cpu(), self.distance.cpu()
        return result

    def to(self, device: torch.device) -> Found:
        """A copy on a device."""
        result = copy.deepcopy(self)
        result.point, result.distance = result.point.to(device), result.distance.to(device)
        return result

    def provenance(self, image: int) -> dict[str, Any] | None:
        """Where an image's point comes from, as plain data."""
        origin = self.origin[image]
        return None if origin is None else {**asdict(origin), "target": self.target[image]}

    def put(self, image: int, point: Tensor, distance: Tensor, origin: Origin, target: int) -> None:
        """Record a point for one image if it is closer than what is there."""
        if distance < self.distance[image]:
            self.point[image] = point
            self.distance[image] = distance
            self.origin[image] = origin
            self.target[image] = target


class Block:
    """Images, and the points found for them.

    Attributes:
        model: The selective classifier that judges.
        x: Images `(B, ...)`.
        y: True classes `(B,)`.
        index: Numbers of the images in their data set `(B,)`.
        eps: The budget.
        searcher: The classifier that searches run: the model, or a cheaper copy of it.
        clean_labels: Answers to the images as they are, -1 where rejected `(B,)`.
        base_labels: The network's own answers to them `(B,)`.
        order: Target classes of each image, likeliest first `(B, c)`, made by `rank_targets`.
        found: For each goal the closest point that reaches it.
    """

    def __init__(
        self,
        model: SelectiveClassifier,
        x: Tensor,
        y: Tensor,
        index: Tensor,
        *,
        eps: float,
        norm: str,
        batch_size: int,
        steering: Steering | None = None,
        searcher: SelectiveClassifier | None = None,
    ) -> None:
        self.model = model
        self.steering = steering or Steering()
        self.searcher = searcher or self.steering.model(model)
        self.x, self.y, self.index = x, y, index
        self.eps = eps
        self.ball: Ball = ball(norm)
        self.batch_size = batch_size
        self.clean_labels = torch.full_like(y, NO_TARGET)
        self.base_labels = torch.full_like(y, NO_TARGET)
        self.order = torch.empty(len(x), 0, dtype=torch.int64, device=x.device)
        self.found = {goal: Found(x) for goal in Goal}

    def __len__(self) -> int:
        return len(self.x)

    def snapshot(self) -> dict[Goal, Found]:
        """A copy of what is known, to go back to."""
        return copy.deepcopy(self.found)

    def restore(self, saved: dict[Goal, Found]) -> None:
        """Go back to a snapshot."""
        self.found = copy.deepcopy(saved)

    @property
    def reach(self) -> float:
        """How far the network's boundary matters: T reaches that much beyond eps."""
        return self.eps + float(getattr(self.model.rule, "radius", 0.0))

    def limit(self, goal: Goal) -> float:
        """The largest radius in which a goal is searched."""
        return self.reach if goal is Goal.MISTAKE else self.eps

    def settled(self, goal: Goal) -> Tensor:
        """Images on which a search for a goal can change no figure any more `(B,)`."""
        broken = self.found[Goal.ACCEPTED_MISTAKE].known
        if goal is Goal.ACCEPTED_MISTAKE:
            return broken
        return broken | (self.found[goal].distance == 0)

    def judge_clean(self) -> None:
        """Judge the images as they are."""
        everyone = torch.arange(len(self), device=self.x.device)
        labels, predicted = [], []
        for rows in everyone.split(self.batch_size):
            selection = self.model.judge(self.x[rows])
            labels.append(selection.labels)
            predicted.append(selection.predicted)
            for goal in Goal:
                hit = goal.reached(selection.predicted, selection.accepted, self.y[rows])
                self._record(rows, self.x[rows], hit, goal, CLEAN)
        self.clean_labels, self.base_labels = torch.cat(labels), torch.cat(predicted)

    def consider(
        self,
        image: Tensor,
        points: Tensor,
        goal: Goal,
        radius: float | Tensor,
        origin: Origin | list[Origin],
        target: Tensor | None = None,
    ) -> Tensor:
        """Judge proposed points: project, ask the model itself, record what holds.

        Args:
            image: Which image of the block each point belongs to `(M,)`.
            points: The points `(M, ...)`.
            goal: What they claim to reach.
            radius: The ball they were searched in, one or `(M,)`.
            origin: Where they come from, one or one each.
            target: The classes they aimed at `(M,)`.

        Returns:
            Whether each point reaches the goal `(M,)`.
        """
        x = self.x[image]
        points = self.ball.project_strictly(points, x, radius)
        hits = []
        for rows in torch.arange(len(image), device=x.device).split(self.batch_size):
            y = self.y[image[rows]]
            if goal is Goal.MISTAKE:
                with torch.no_grad():
                    predicted = self.model.logits(points[rows]).argmax(dim=1)
                hits.append(predicted != y)
            else:
                selection = self.model.judge(points[rows])
                hits.append(goal.reached(selection.predicted, selection.accepted, y))
        hit = torch.cat(hits) if hits else torch.zeros(0, dtype=torch.bool, device=x.device)
        self._record(image, points, hit, goal, origin, target)
        return hit

    def _record(
        self,
        image: Tensor,
        points: Tensor,
        hit: Tensor,
        goal: Goal,
        origin: Origin | list[Origin],
        target: Tensor | None = None,
    ) -> None:
        distance = self.ball.distance(points, self.x[image])
        if origin is not CLEAN:
            hit = hit & (distance > 0)  # the image itself has been judged, once and for all
        found = self.found[goal]
        for row in hit.nonzero().flatten().tolist():
            source = origin[row] if isinstance(origin, list) else origin
            aim = NO_TARGET if target is None else int(target[row])
            found.put(int(image[row]), points[row], distance[row], source, aim)


def rank_targets(block: Block, most: int) -> None:
    """Order each image's wrong classes by how close their boundaries look to first order.

    The gap between the true class's logit and another one's, divided by the dual norm of the gap's
    gradient: a class with a small gap that hardly moves is farther than one with a larger gap
    that moves much.

    Args:
        block: Its `order` is set to `(B, min(most, k - 1))`.
        most: With more classes than this, only the classes with the largest logits are ranked.
    """
    columns = []
    dual = 1 if block.ball.name == "Linf" else 2
    for rows in torch.arange(len(block), device=block.x.device).split(block.batch_size):
        z = block.x[rows].detach().requires_grad_()
        y = block.y[rows]
        with torch.enable_grad():
            logits = block.model.logits(z)
            others = logits.detach().scatter(1, y[:, None], -torch.inf)
            candidates = others.topk(min(most, logits.shape[1] - 1), dim=1).indices
            own = logits.gather(1, y[:, None])
            gaps = own - logits.gather(1, candidates)
            ranks = []
            for column in range(gaps.shape[1]):
                (slope,) = torch.autograd.grad(gaps[:, column].sum(), z, retain_graph=True)
                steepness = torch.linalg.vector_norm(slope.flatten(1), ord=dual, dim=1)
                tiny = torch.finfo(steepness.dtype).tiny
                ranks.append(gaps[:, column].detach() / steepness.clamp_min(tiny))
        order = torch.stack(ranks, dim=1).argsort(dim=1, stable=True)
        columns.append(candidates.gather(1, order))
    block.order = torch.cat(columns)
