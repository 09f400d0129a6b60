"""One attack on a block: rows of work in full batches, broken images leave, others move up."""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap.attacks.adaptive import KNOWN, Attack
from cpr_wrap.engine.block import Block, reached
from cpr_wrap.engine.rows import OVERDUE, Batch, Candidates, Paths, Rows, plan
from cpr_wrap.geometry import spread
from cpr_wrap.metrics.evidence import Origin
from cpr_wrap.objective import Aim, Goal, Path, Targets, View
from cpr_wrap.smoothing import obstacle, smoothed
from cpr_wrap.solver import Climb

_BETWEEN_JUDGEMENTS = 3


def begin(block: Block, attack: Attack, image: Tensor, radius: Tensor) -> dict[str, Any]:
    """The state of a `Search` on images `(M,)` of a block, in balls of their own radius `(B,)`."""
    rows, points = plan(block, attack, image, radius)
    return {
        "image": image,
        "radius": radius,
        "rows": rows.columns(),
        "points": points,
        "left": len(rows.image),
        "batch": None,
        "ticks": 0,
        "best_of_image": Candidates.none(block.x).columns(),
    }


class Search:
    """One attack on some images of a block, in their own radii, with continuous batching."""

    def __init__(
        self, block: Block, attack: Attack, state: dict[str, Any], seed: int, *, turn: int = 0
    ) -> None:
        """Go to where a state was taken.

        Random starts depend on `turn`, the number of this search among those of the same attack.
        """
        self.block, self.attack, self.seed, self.turn = block, attack, seed, turn
        rule, objective = block.model.rule, attack.objective
        self.rule = rule.stand_in() if attack.stand_in else rule
        # The verdict comes with the view where it is free, or where the objective pays for it.
        self.verdict = rule.cost.total == 1 or objective.score or bool(objective.path)
        seen = attack.goal is Goal.MISTAKE or (self.verdict and self.rule == rule)
        self.exact = seen and block.precision.exact
        self.keeps_paths = attack.refresh > 1 and bool(objective.path)
        self.smooth = self._smoothing()
        self.poll = 1 if block.x.device.type == "cpu" else 4
        self.image: Tensor = state["image"]
        self.radius: Tensor = state["radius"]
        self.rows, self.points = Rows(**state["rows"]), state["points"]
        self.image_of_row: list[int] = self.rows.image.tolist()
        self.left: int = state["left"]  # rows that wait, the last ones
        batch, pgd = state["batch"], attack.pgd(block.threat.name)
        self.batch = None if batch is None else Batch.resumed(batch, pgd)
        self.ticks: int = state["ticks"]
        self.best_of_image = Candidates(**state["best_of_image"])

    def state(self) -> dict[str, Any]:
        """All that the rest of the search depends on beside the block, as plain data."""
        return {
            "image": self.image,
            "radius": self.radius,
            "rows": self.rows.columns(),
            "points": self.points,
            "left": self.left,
            "batch": None if self.batch is None else self.batch.state(),
            "ticks": self.ticks,
            "best_of_image": self.best_of_image.columns(),
        }

    def _smoothing(self) -> bool:
        """Whether gradients are smoothed; where they cannot be, the result says so."""
        if self.attack.gradient == "exact":
            return False
        why = obstacle(self.block.searcher.base)
        if why:
            self.block.notes.add(f"gradients could not be smoothed ({why}): exact ones were used")
        return not why

    def _launch(self, rows: Rows) -> Climb:
        """Put rows at their starts."""
        block, attack = self.block, self.attack
        x, radius = block.x[rows.image], self.radius[rows.image].to(block.x.dtype)
        start = x
        if bool((rows.start > 0).any()):
            key = noise.keys(
                self.seed,
                zlib.crc32(attack.name.encode()),
                block.index[rows.image],
                rows.target,
                rows.start,
                self.turn,
            )
            offset = block.threat.random_offset(x, radius, key)
            start = torch.where(spread(rows.start > 0, x), x + offset, start)
        if isinstance(attack.starts, tuple) and KNOWN in attack.starts:
            start = torch.where(spread(rows.start == KNOWN, x), self._known(rows.image), start)
        if len(self.points):
            start = self.points[rows.number]
        step = torch.full_like(radius, block.eps) if attack.step_of_eps else radius
        # The judge projects strictly. Where T depends on the last bit of a point, a success of the
        # search must be the very point that is judged.
        inside = (radius - block.threat.slack(x)).clamp_min(0)
        return Climb(
            x, inside, attack.pgd(block.threat.name), start=start, step_size=step * attack.step
        )

    def _known(self, image: Tensor) -> Tensor:
        """The best known point for this goal, or else the one on the network's boundary."""
        found = self.block.found[self.attack.goal]
        boundary = self.block.found[Goal.MISTAKE]
        known = spread(found.known[image], self.block.x)
        return torch.where(known, found.point[image], boundary.point[image])

    def advance(self) -> bool:
        """Evaluate and move every row of the batch once, and judge what is ripe.

        Returns whether anything was left to do.
        """
        if self.batch is None:
            self.batch = self._refill(None)
        if self.batch is None:
            if self.attack.select == "loss":
                self._propose_best()
            return False
        batch, most = self.batch, self.attack.steps + 1
        last = all(age == most - 1 for age in batch.ages)
        self._advance(batch, last)
        batch.ages = [age + 1 for age in batch.ages]
        self.ticks += 1
        # Asking the device who has arrived would stall it; that a restart is over is known here.
        if self.ticks % self.poll and max(batch.ages) < most:
            return True
        stay = self._settle_rows(batch)
        if len(stay) < len(batch.ages):
            self.batch = self._refill(batch.take(stay) if stay else None)
        return True

    def _refill(self, batch: Batch | None) -> Batch | None:
        """Fill the batch up with rows whose images are still open."""
        if batch is not None and self.attack.gradient == "alternating" and self.ticks % 2:
            return batch  # so that every row begins with the same kind of gradient
        done = self._done().tolist()
        images = self.image_of_row
        room = self.block.batch_size - (0 if batch is None else len(batch.ages))
        new: list[int] = []
        while self.left and len(new) < room:
            row = len(images) - self.left
            self.left -= 1
            if not done[images[row]]:
                new.append(row)
        if not new:
            return batch
        rows = self.rows.take(torch.tensor(new, device=self.rows.image.device))
        climb = self._launch(rows)
        paths = Paths.none(climb.x, self._path_points) if self.keeps_paths else None
        fresh = Batch(rows, climb, Candidates.none(climb.x), paths, [0] * len(new))
        return fresh if batch is None else batch.join(fresh)

    @property
    def _path_points(self) -> int:
        """How many points of the rule's own path are kept; it ends where the verdict is."""
        path = self.attack.objective.path
        return self.rule.paths * (len(path) + (path[-1] < 1))

    def _done(self) -> Tensor:
        """Images on which this search has what it came for, or nothing is left to find `(B,)`."""
        done = self.block.settled(self.attack.goal)
        if self.attack.select == "loss":
            return done
        return done | (self.block.found[self.attack.goal].distance <= self.radius)

    def _advance(self, batch: Batch, last: bool) -> None:
        """Evaluate every row, note candidates, take a step."""
        rows, climb, objective = batch.rows, batch.climb, self.attack.objective
        z = climb.z.detach()
        aim = Aim(self.block.y[rows.image], rows.target)
        label = aim.target if self.attack.aimed else None
        fresh, along = self._along(batch, z, label)
        with torch.set_grad_enabled(not last), self.block.precision.context(z.device):
            z = z if last else z.requires_grad_()
            with self._backward():
                view = self.rule.view(
                    self.block.searcher,
                    z,
                    verdict=self.verdict,
                    path=objective.path,
                    label=label,
                    along=along,
                )
            if last:
                value = objective.value(view, aim)
            else:
                value, gradient = objective.ascent(view, aim)
        hit = self._seems_to_hit(view, aim.label)
        worth = view.promise(aim.target).detach() if self.attack.remember else value
        batch.candidates.observe(z.detach(), worth, hit & fresh, fresh)
        if batch.paths is not None:
            # A success on an old path is looked at again with a new one.
            stale = hit & ~fresh
            batch.paths.since = torch.where(stale, OVERDUE, batch.paths.since + 1)
        if not last:
            self._check_gradient(gradient, rows.image)
            climb.step(value, gradient)

    def _along(self, batch: Batch, z: Tensor, label: Tensor | None) -> tuple[Tensor, Path | None]:
        """Which rows' paths are new `(S,)`, and all rows' paths where they are kept."""
        everyone = torch.ones(len(z), dtype=torch.bool, device=z.device)
        paths, attack = batch.paths, self.attack
        if paths is None:
            return everyone, None
        ages = torch.tensor(batch.ages, device=z.device)
        due = (paths.since >= attack.refresh) | (ages == attack.steps)
        rows = due.nonzero().flatten()
        if len(rows):
            some = None if label is None else label[rows]
            way = self.rule.path(self.block.searcher, z[rows], attack.objective.path, some)
            if way is None:
                return everyone, None
            paths.offset[rows] = torch.stack([point - z[rows] for point in way.points], dim=1)
            paths.since[rows] = 0
        points = tuple((z + offset).clamp(0, 1) for offset in paths.offset.unbind(dim=1))
        return due, Path(points, z.new_full((len(z),), torch.inf))

    def _backward(self) -> AbstractContextManager[Any]:
        """The kind of gradient of this tick."""
        exact = self.attack.gradient == "alternating" and self.ticks % 2 == 0
        return smoothed(self.attack.strength) if self.smooth and not exact else nullcontext()

    def _check_gradient(self, gradient: Tensor, image: Tensor) -> None:
        """Note NaN and infinite entries, which a step takes as 0; refuse rows of nothing else."""
        finite = gradient.isfinite().flatten(1)
        if bool(finite.all()):
            return
        lost = ~finite.any(dim=1)
        if bool(lost.any()):
            number = int(self.block.index[image[lost][0]])
            raise RuntimeError(
                f"{self.attack.name}: the gradient at image {number} is NaN or infinite at every "
                "pixel, so no gradient attack can work; see input_gradient_report"
            )
        self.block.notes.add(
            "gradients had NaN or infinite entries, which attacks took as 0: robustness may be "
            "overstated"
        )

    def _seems_to_hit(self, view: View, y: Tensor) -> Tensor:
        """What the view says about the goal, or suspects where it has no verdict."""
        goal, accepted = self.attack.goal, view.accepted
        if self.attack.select == "loss" or (accepted is None and goal is Goal.REJECTED):
            return torch.zeros_like(view.predicted, dtype=torch.bool)
        return reached(goal, view.predicted, accepted, y)

    def _settle_rows(self, batch: Batch) -> list[int]:
        """Judge what is ripe; return the rows (positions in the batch) that go on."""
        attack, rows, candidates = self.attack, batch.rows, batch.candidates
        age = torch.tensor(batch.ages, device=rows.image.device)
        points = attack.steps + 1
        ended = age >= points
        if attack.select == "loss":
            self._collect(rows, candidates, ended)
            return (~ended).nonzero().flatten().tolist()
        # Judging costs as much as a good part of a restart, so that not every hit is judged; but
        # the best one at the end is not the only one that may hold. Where a hit is no more than a
        # wrong prediction, the first one and the best one must do.
        due = candidates.judged.isneginf()
        if self.verdict:
            due = due | (self.poll > 1) | ((points - age) % _BETWEEN_JUDGEMENTS == 0)
        midway = (age >= (points + 1) // 2) & due
        ripe = candidates.hit & (self.exact | ended | midway)
        if attack.goal is Goal.REJECTED and not self.exact:
            # A stand-in for T flips less than T itself: ask about the best point in any case.
            ripe = ripe | ended
        if bool(ripe.any()):
            picks = ripe.nonzero().flatten()
            self._judge(rows.take(picks), candidates.take(picks))
            candidates.forget(ripe)
        done = self._done()
        over = ended | done[rows.image]
        if attack.remember:
            self._remember(batch, (over & ~done[rows.image]).nonzero().flatten())
        return (~over).nonzero().flatten().tolist()

    def _remember(self, batch: Batch, picks: Tensor) -> None:
        """Keep where restarts ended that found nothing."""
        if len(picks) and self.attack.objective.targets is not Targets.NONE:
            rows, candidates = batch.rows.take(picks), batch.candidates.take(picks)
            self.block.near.note(rows.image, candidates.point, rows.target, candidates.value)

    def _judge(self, rows: Rows, candidates: Candidates) -> None:
        radius = self.radius[rows.image]
        columns = (rows.start.tolist(), radius.tolist(), rows.target.tolist())
        origin = [
            Origin(attack=self.attack.name, start=s, alpha=r / self.block.eps, target=t)
            for s, r, t in zip(*columns, strict=True)
        ]
        self.block.consider(rows.image, candidates.point, self.attack.goal, radius, origin)

    def _collect(self, rows: Rows, candidates: Candidates, ended: Tensor) -> None:
        """Keep the point of the largest objective for each image, over starts and targets."""
        best = self.best_of_image
        for row in ended.nonzero().flatten().tolist():
            image = int(rows.image[row])
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
