"""What a search holds of each of its rows: parallel tensors that are taken and joined together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from cpr_wrap.geometry import spread
from cpr_wrap.solver import PGD, Climb

NO_POINT = -1
OVERDUE = 1_000_000


class Parallel:
    """A dataclass of tensors that all have one entry per row."""

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
class Rows(Parallel):
    """Restarts to be done, all with the same attack."""

    image: Tensor  # which image of the block (R,)
    target: Tensor  # the class to aim at, -1 for none (R,)
    start: Tensor  # where the restart begins, as Origin.start (R,)
    number: Tensor  # which of the search's start points it begins at, -1 for none (R,)


@dataclass
class Candidates(Parallel):
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
class Paths(Parallel):
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

    def take(self, rows: list[int]) -> Batch | None:
        """Some of the rows, by position; None where there are none."""
        if not rows:
            return None
        kept = torch.tensor(rows, dtype=torch.int64, device=self.rows.image.device)
        return Batch(
            self.rows.take(kept),
            self.climb.take(kept),
            self.candidates.take(kept),
            None if self.paths is None else self.paths.take(kept),
            [self.ages[row] for row in rows],
        )

    def join(self, other: Batch) -> Batch:
        """These rows, and those of another behind them."""
        paths = self.paths
        if paths is not None and other.paths is not None:
            paths = paths.join(other.paths)
        return Batch(
            self.rows.join(other.rows),
            self.climb.join(other.climb),
            self.candidates.join(other.candidates),
            paths,
            self.ages + other.ages,
        )

    def state(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "rows": vars(self.rows),
            "climb": self.climb.state(),
            "candidates": vars(self.candidates),
            "paths": None if self.paths is None else vars(self.paths),
            "ages": self.ages,
        }

    @classmethod
    def resumed(cls, state: dict[str, Any], pgd: PGD) -> Batch:
        """The batch that a state was taken from."""
        return cls(
            Rows(**state["rows"]),
            Climb.resumed(state["climb"], pgd),
            Candidates(**state["candidates"]),
            None if state["paths"] is None else Paths(**state["paths"]),
            state["ages"],
        )
