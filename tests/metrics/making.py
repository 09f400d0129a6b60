"""Records made from two lists of distances, and a brute-force world on the integer line."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from hypothesis import strategies as st

from cpr_wrap.metrics import CLEAN, Records

INF = math.inf
WRONG, RIGHT = 1, 0


def make(outer, rejected, *, eps=0.2, norm="Linf", **more):
    """Records of images with true label 0; inf means that nothing was found."""
    outer, rejected = list(outer), list(rejected)
    clean = [
        -1 if r == 0 else WRONG if d == 0 else RIGHT for d, r in zip(outer, rejected, strict=True)
    ]
    return Records(
        index=torch.arange(len(outer)) + 100,
        label=torch.full((len(outer),), RIGHT),
        clean_label=torch.tensor(clean, dtype=torch.int64),
        outer_broken=torch.tensor([d < INF for d in outer], dtype=torch.bool),
        outer_distance=torch.tensor(outer, dtype=torch.float64),
        outer_by=tuple(_by(d, "HCMOA") for d in outer),
        rejected_radius=torch.tensor(rejected, dtype=torch.float64),
        rejected_by=tuple(_by(r, "PDIA") for r in rejected),
        eps=eps,
        norm=norm,
        **more,
    )


def _by(distance, name):
    return "" if distance == INF else CLEAN if distance == 0 else name


@st.composite
def findings(draw, max_size=12):
    """Records whose distances are whole thousandths of eps."""
    eps = draw(st.sampled_from([8 / 255, 0.3, 0.5, 3.0]))
    part = st.one_of(st.just(0), st.just(INF), st.integers(1, 1000))
    pairs = st.tuples(part, part).filter(lambda pair: pair != (0, 0))
    rows = draw(st.lists(pairs, min_size=1, max_size=max_size))
    outer, rejected = zip(*rows, strict=True)
    return make([d / 1000 * eps for d in outer], [r / 1000 * eps for r in rejected], eps=eps)


class Line:
    """A base network on the integers 0 .. size - 1: everything about it can be counted.

    Args:
        answers: The base network's answer at each integer.
    """

    def __init__(self, answers):
        self.answers = list(answers)

    def near(self, x, radius):
        return range(max(0, x - radius), min(len(self.answers), x + radius + 1))

    def boundary_distance(self, x):
        other = [abs(x - z) for z, a in enumerate(self.answers) if a != self.answers[x]]
        return min(other, default=INF)

    def selective(self, radius):
        """The ideal rule's answers, -1 within `radius` of the boundary."""
        return [
            -1 if self.boundary_distance(x) <= radius else answer
            for x, answer in enumerate(self.answers)
        ]

    def error_by_definition(self, f, x, y, eps, inner):
        """Definition 2: wrong or rejected within `inner`, or accepted and wrong within eps."""
        return any(f[z] != y for z in self.near(x, inner)) or any(
            f[z] not in (y, -1) for z in self.near(x, eps)
        )

    def error_by_proposition(self, f, x, y, eps, inner):
        """Proposition 1: rejected within `inner`, or accepted and wrong within eps."""
        return any(f[z] == -1 for z in self.near(x, inner)) or any(
            f[z] not in (y, -1) for z in self.near(x, eps)
        )

    def loss_by_definition(self, f, x, y, eps, prices):
        """Definition 1: the worst point within eps, by the price of rejecting at each distance."""
        costs = [
            1.0 if f[z] not in (y, -1) else prices[abs(x - z)] if f[z] == -1 else 0.0
            for z in self.near(x, eps)
        ]
        return max(costs)

    def records(self, f, points, eps):
        """What a perfect evaluation of `f` on (x, y) points would record."""
        rows = []
        for number, (x, y) in enumerate(points):
            ball = self.near(x, eps)
            mistake = min((abs(x - z) for z in ball if f[z] not in (y, -1)), default=INF)
            rejection = min((abs(x - z) for z in ball if f[z] == -1), default=INF)
            rows.append(
                {
                    "index": number,
                    "label": y,
                    "clean_label": f[x],
                    "outer_broken": mistake < INF,
                    "outer_distance": mistake,
                    "outer_by": _by(mistake, "count"),
                    "rejected_radius": rejection,
                    "rejected_by": _by(rejection, "count"),
                    "boundary_distance": self.boundary_distance(x),
                    "base_label": self.answers[x],
                }
            )
        return Records.from_rows(rows, eps=float(eps), norm="Linf")


def falls(values):
    """Does the sequence fall anywhere?"""
    return any(after < before for before, after in pairwise(values))
