"""Points that were found elsewhere, judged like any proposal."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cpr_wrap._files import digest
from cpr_wrap.objective import Goal


@dataclass(frozen=True, eq=False)
class GivenPoints:
    """A stage that judges points instead of searching for them.

    Attributes:
        index: Numbers of the images that the points belong to `(M,)`; an image may come twice.
        points: The points `(M, ...)`.
        source: Where they come from.
    """

    index: Tensor
    points: Tensor
    source: str = ""

    goal = Goal.ACCEPTED_MISTAKE

    @property
    def name(self) -> str:
        """The name in tables."""
        return "given points"

    def __repr__(self) -> str:
        return f"GivenPoints({len(self.index)} points, {digest(self.index, self.points)[:16]})"
