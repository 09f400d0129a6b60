"""Points that were found elsewhere, judged like any proposal."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cpr_wrap._files import digest
from cpr_wrap.objective import Goal


@dataclass(frozen=True, eq=False)
class GivenPoints:
    """A stage that judges points instead of searching for them."""

    index: Tensor  # numbers of the images that the points belong to (M,); one may come twice
    points: Tensor  # (M, ...)
    source: str = ""

    goal = Goal.ACCEPTED_MISTAKE

    @property
    def name(self) -> str:
        """The name in tables."""
        return "given points"

    def __repr__(self) -> str:
        return f"GivenPoints({len(self.index)} points, {digest(self.index, self.points)[:16]})"
