"""How far bounds reach around images: the largest radius at which something is proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpr_wrap.bounds.crown import crown_leads
from cpr_wrap.bounds.interval import leads

SPARE = 2.0**-23
"""Figures count a measured distance as smaller by this much (float32); so proofs reach further."""

Test = Callable[[Tensor], Tensor]
"""From leads of the true class over each class `(M, k)` to a number `(M,)`: proven if above 0."""

_INTERVAL_STEPS, _CROWN_STEPS = 14, 4


class Radii(NamedTuple):
    """What is proven about a rule's verdicts around each image.

    Attributes:
        mistake: No accepted mistake within `(N,)`, float64.
        rejection: No rejection within `(N,)`, float64.
    """

    mistake: Tensor
    rejection: Tensor


def smallest(found: Tensor) -> Tensor:
    """By how much the true class is proven to lead every other one, `(M, k)` to `(M,)`."""
    return found.amin(dim=1)


class Proof:
    """Bounds around images that the network classifies rightly, asked for by radius.

    Attributes:
        eps: The budget, which is tried before any other radius.
        most: The largest radius that is looked at.
    """

    def __init__(
        self,
        network: nn.Module,
        x: Tensor,
        y: Tensor,
        eps: float,
        *,
        num_classes: int,
        most: float | None = None,
        crown: bool = True,
    ) -> None:
        """Prepare.

        Args:
            network: In eval mode; takes pixels.
            x: Images `(N, ...)` in [0, 1].
            y: True classes `(N,)`.
            eps: The budget, Linf.
            num_classes: k; further outputs are not read.
            most: The largest radius to look at; eps if None.
            crown: Whether to use CROWN beside interval bounds.
        """
        self.network, self.x, self.y, self.eps = network, x, y, eps
        self.num_classes, self.crown = num_classes, crown
        self.most = min(1.0, eps if most is None else max(most, eps))

    def interval_radius(
        self, test: Test = smallest, *, tried: Sequence[float] = (), margin: float = 1.0
    ) -> Tensor:
        """The largest radius at which interval bounds pass a test; 0 where none does.

        Args:
            test: What the leads must show. It must not fall where leads rise.
            tried: Radii to try after eps.
            margin: How many rounding margins to add.

        Returns:
            Radii `(N,)`, float64 on the CPU.
        """

        def value(rows: Tensor, radius: Tensor) -> Tensor:
            x, y = self.x[rows], self.y[rows]
            return test(
                leads(self.network, x, y, radius, num_classes=self.num_classes, margin=margin)
            )

        start = torch.zeros(len(self.x), dtype=torch.float64)
        return self._search(value, start, (self.eps, *tried), _INTERVAL_STEPS)

    def radius(self, test: Test = smallest, *, tried: Sequence[float] = ()) -> Tensor:
        """The largest radius at which interval bounds or CROWN pass a test; see above."""
        found = self.interval_radius(test, tried=tried)
        if not self.crown:
            return found

        def value(rows: Tensor, radius: Tensor) -> Tensor:
            x, y = self.x[rows], self.y[rows]
            return test(crown_leads(self.network, x, y, radius, num_classes=self.num_classes))

        return self._search(value, found, (self.eps, *tried), _CROWN_STEPS)

    def _search(
        self,
        value: Callable[[Tensor, Tensor], Tensor],
        low: Tensor,
        tried: Sequence[float],
        steps: int,
    ) -> Tensor:
        """Radii that pass: first those to try, then between the last that passed and failed.

        The place between is where a line through both values, each as a logarithm, meets 0: the
        values fall slowly before and steeply behind it.
        """
        low, high = low.clone(), torch.full_like(low, torch.inf)
        at_low, at_high = torch.ones_like(low), torch.ones_like(low)

        def ask(radius: Tensor) -> None:
            rows = ((radius > low) & (radius < high)).nonzero().squeeze(1)
            if not len(rows):
                return
            there = rows.to(self.x.device)
            with torch.no_grad():
                reached = value(there, (radius[rows] + SPARE).to(self.x.device)).double().cpu()
            held = reached > 0
            size = reached.abs().log1p()
            low[rows] = torch.where(held, radius[rows], low[rows])
            high[rows] = torch.where(held, high[rows], radius[rows])
            at_low[rows] = torch.where(held, size, at_low[rows])
            at_high[rows] = torch.where(held, at_high[rows], size)

        for radius in (*tried, self.most):
            if 0 < radius <= self.most:
                ask(torch.full_like(low, radius))
        for step in range(steps):
            share = at_low / (at_low + at_high)
            share = torch.where(torch.tensor(step % 3 == 2), 0.5, share.clamp(0.1, 0.9))
            ask(torch.where(high.isfinite(), low + share * (high - low), low))
        return low
