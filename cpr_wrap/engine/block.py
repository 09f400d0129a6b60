"""A block of images under evaluation: what is known of each, and the only place that judges."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from cpr_wrap._files import digest
from cpr_wrap.attacks.donors import Donors
from cpr_wrap.engine.precision import Precision
from cpr_wrap.geometry import threat, wide
from cpr_wrap.metrics.evidence import NO_TARGET, Origin
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier, check_finite
from cpr_wrap.solver import Columns

CLEAN = Origin(attack="clean", alpha=0.0)


class Found(Columns):
    """The closest point to each image that reaches one goal, and how it was found."""

    def __init__(self, x: Tensor) -> None:
        self.point = x.clone()  # the image itself where none is known
        self.distance = torch.full((len(x),), torch.inf, dtype=wide(x), device=x.device)
        self.origin: list[Origin | None] = [None] * len(x)

    @property
    def known(self) -> Tensor:
        """Whether there is a point `(B,)`."""
        return self.distance.isfinite()

    def to(self, device: torch.device | str) -> Found:
        """The same on a device."""
        return self.with_columns({name: held.to(device) for name, held in self.columns().items()})

    def put(
        self, image: Tensor, points: Tensor, distance: Tensor, hit: Tensor, origin: list[Origin]
    ) -> None:
        """Record those points `(M, ...)` of images `(M,)` that count and are closer than before."""
        rows = (hit & (distance < self.distance[image])).nonzero().flatten()
        if len(rows) == 0:
            return
        # The last one of an image is what a dictionary keeps: the closest, the first of equals.
        rows = rows[distance[rows].argsort(stable=True)].flip(0)
        best = dict(zip(image[rows].tolist(), rows.tolist(), strict=True))
        places, winners = torch.tensor(list(best.items()), device=image.device).unbind(dim=1)
        self.point[places] = points[winners]
        self.distance[places] = distance[winners]
        for place, row in best.items():
            self.origin[place] = origin[row]


class Near(Columns):
    """Where searches for mistakes ended that did not find one: the K best points of each image.

    Points `(B, K, ...)`, the classes they aimed at `(B, K)`, and their objective `(B, K)`, falling
    along K and minus infinity for none.
    """

    def __init__(self, x: Tensor, count: int = 2) -> None:
        self.point = x[:, None].repeat(1, count, *(1,) * (x.dim() - 1))
        self.target = torch.full((len(x), count), NO_TARGET, device=x.device)
        self.value = torch.full((len(x), count), -torch.inf, dtype=x.dtype, device=x.device)

    def note(self, image: Tensor, points: Tensor, target: Tensor, value: Tensor) -> None:
        """Keep points `(M, ...)` that are better than what is there, one per image and target."""
        for place, point, aim, worth in zip(
            image.tolist(), points, target.tolist(), value.to(self.value), strict=True
        ):
            same = (self.target[place] == aim).nonzero().flatten()
            slot = int(same[0]) if len(same) else self.value.shape[1] - 1
            if worth <= self.value[place, slot]:
                continue
            self.point[place, slot], self.target[place, slot] = point, aim
            self.value[place, slot] = worth
            order = self.value[place].argsort(descending=True, stable=True)
            for held in self.columns().values():
                held[place] = held[place][order].clone()


class Block:
    """Images, and the points found for them.

    Whatever the model was asked is recorded for every goal that the answer touches. A point beyond
    eps touches the network's boundary alone.
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
        precision: Precision | None = None,
        searcher: SelectiveClassifier | None = None,
        donors: Donors | None = None,
    ) -> None:
        self.model, self.donors = model, donors
        self.x, self.y, self.index = x, y, index  # (B, ...), (B,), numbers in the data set (B,)
        self.eps, self.threat, self.batch_size = eps, threat(norm), batch_size
        self.precision = precision or Precision()
        self.searcher = searcher or self.precision.model(model)  # what searches run
        self.clean_labels = torch.full_like(y, NO_TARGET)  # answers, -1 where rejected (B,)
        self.base_labels = torch.full_like(y, NO_TARGET)  # the network's own answers (B,)
        # Target classes of each image, likeliest first (B, c), made by `rank_targets`.
        self.order = torch.empty(len(x), 0, dtype=torch.int64, device=x.device)
        self.found = {goal: Found(x) for goal in Goal}
        self.near = Near(x)
        self.notes: set[str] = set()  # what readers should know of the stage under way

    def __len__(self) -> int:
        return len(self.x)

    @cached_property
    def key(self) -> str:
        """A digest of images, labels and numbers."""
        return digest(self.x, self.y, self.index)

    def known(self) -> dict[str, Found | Near]:
        """All points that are known, by a name for each kind."""
        return {**{goal.name: found for goal, found in self.found.items()}, "near": self.near}

    @property
    def rule_reach(self) -> float:
        """How far from a point the verdict looks, if that is measured as the budget is."""
        rule = self.model.rule
        return rule.reach if rule.norm in (None, self.threat.name) else 0.0

    def limit(self, goal: Goal) -> float:
        """The largest radius in which a goal is searched."""
        return self.eps + self.rule_reach if goal is Goal.MISTAKE else self.eps

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
            self._record(
                rows, self.x[rows], selection.predicted, selection.accepted, [CLEAN] * len(rows)
            )
        self.clean_labels, self.base_labels = torch.cat(labels), torch.cat(predicted)

    def consider(
        self,
        image: Tensor,
        points: Tensor,
        goal: Goal,
        radius: float | Tensor,
        origin: Origin | list[Origin],
    ) -> Tensor:
        """Judge points `(M, ...)` of images `(M,)`: project, ask the model, record what holds.

        The radius of the balls and the origin are one, or one for each point. For a mistake of the
        network alone only its prediction is asked for where a verdict costs more; the verdict
        counts for every goal. Returns whether each point reaches the goal it claims `(M,)`.
        """
        if not len(image):
            return torch.zeros(0, dtype=torch.bool, device=self.x.device)
        points = self.threat.project_strictly(points, self.x[image], radius)
        origins = origin if isinstance(origin, list) else [origin] * len(image)
        hits = []
        for rows in torch.arange(len(image), device=self.x.device).split(self.batch_size):
            predicted, accepted = self._ask(points[rows], goal)
            first, last = int(rows[0]), int(rows[-1]) + 1
            here = image[rows]
            self._record(here, points[rows], predicted, accepted, origins[first:last])
            hits.append(reached(goal, predicted, accepted, self.y[here]))
        return torch.cat(hits)

    def doubtful_points(self) -> tuple[int, int]:
        """Ask again about the images and all known points: how many, how many changed."""
        asked = lost = 0
        for rows in torch.arange(len(self), device=self.x.device).split(self.batch_size):
            labels = self.model.judge(self.x[rows]).labels
            asked, lost = asked + len(rows), lost + int((labels != self.clean_labels[rows]).sum())
        for goal, found in self.found.items():
            image = (found.known & (found.distance > 0)).nonzero().flatten()
            for rows in image.split(self.batch_size):
                holds = reached(goal, *self._ask(found.point[rows], goal), self.y[rows])
                asked, lost = asked + len(rows), lost + int((~holds).sum())
        return asked, lost

    def _ask(self, points: Tensor, goal: Goal) -> tuple[Tensor, Tensor | None]:
        """Predictions `(M,)`, and verdicts `(M,)` where they are wanted or cost nothing more."""
        if goal is Goal.MISTAKE and self.model.rule.cost.total > 1:
            with torch.no_grad():
                outputs = self.model.outputs(points)
            check_finite(outputs)
            extra = self.model.rule.extra_outputs
            return outputs[:, : outputs.shape[1] - extra].argmax(dim=1), None
        selection = self.model.judge(points)
        return selection.predicted, selection.accepted

    def _record(
        self,
        image: Tensor,
        points: Tensor,
        predicted: Tensor,
        accepted: Tensor | None,
        origin: list[Origin],
    ) -> None:
        """Keep what an answer says, for every goal it touches."""
        distance = self.threat.distance(points, self.x[image])
        # The image itself is judged once and for all.
        counts = distance >= 0 if origin[0] is CLEAN else distance > 0
        wrong = predicted != self.y[image]
        hits = {Goal.MISTAKE: wrong}
        if accepted is not None:
            inside = distance <= self.eps
            hits[Goal.REJECTED] = ~accepted & inside
            hits[Goal.ACCEPTED_MISTAKE] = accepted & wrong & inside
        for goal, hit in hits.items():
            self.found[goal].put(image, points, distance, hit & counts, origin)


def reached(goal: Goal, predicted: Tensor, accepted: Tensor | None, y: Tensor) -> Tensor:
    """Whether answers reach a goal `(M,)`; without a verdict, whether the prediction is wrong."""
    return predicted != y if accepted is None else goal.reached(predicted, accepted, y)


def rank_targets(block: Block, most: int) -> None:
    """Order each image's wrong classes by how close their boundaries look to first order.

    The gap between the true class's logit and another one's, divided by the dual norm of the gap's
    gradient: a class with a small gap that hardly moves is farther than one with a larger gap
    that moves much. Sets `block.order` `(B, min(most, k - 1))`; with more than `most` classes, only
    those with the largest logits are ranked.
    """
    columns = []
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
                steepness = block.threat.steepness(slope.nan_to_num())
                tiny = torch.finfo(steepness.dtype).tiny
                ranks.append(gaps[:, column].detach() / steepness.clamp_min(tiny))
        order = torch.stack(ranks, dim=1).argsort(dim=1, stable=True)
        columns.append(candidates.gather(1, order))
    block.order = torch.cat(columns)
