"""How far bounds reach around images: the largest radius at which something is proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpr_wrap.bounds.crown import crown_leads
from cpr_wrap.bounds.interval import leads

SPARE = 2.0**-23
"""Figures count a measured distance as smaller by this much (float32); so proofs reach further."""

Test = Callable[[Tensor], Tensor]
"""From leads of the true class over each class `(M, k)` to a number `(M,)`: proven if above 0."""

_INTERVAL, _CROWN = (14, 1e-4), (3, 0.02)  # most steps of a search, and the share left open


class Radii(NamedTuple):
    """What is proven about a rule's verdicts around each image."""

    mistake: Tensor  #: Radii without an accepted mistake `(N,)`, float64.
    rejection: Tensor  #: Radii without a rejection `(N,)`, float64.


def smallest(found: Tensor) -> Tensor:
    """By how much the true class is proven to lead every other one, `(M, k)` to `(M,)`."""
    return found.amin(dim=1)


class Proof:
    """Bounds around images that the network classifies correctly, for any radius.

    Attributes:
        eps: The budget, the first radius to be tried.
        most: The largest radius to try.
        right: Radii within which the prediction is proven correct `(N,)`; computed on first use.
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
            network: Network on pixels, in eval mode.
            x: Images `(N, ...)` in [0, 1].
            y: True classes `(N,)`.
            eps: The budget, Linf.
            num_classes: k; further outputs are not read.
            most: The largest radius to try; eps if None.
            crown: Whether to use CROWN in addition to interval bounds.
        """
        self.network, self.x, self.y, self.eps = network, x, y, eps
        self.num_classes, self.crown = num_classes, crown
        self.most = min(1.0, eps if most is None else max(most, eps))
        self.right: Tensor | None = None
        self._asked: list[tuple[Tensor, Tensor, Tensor]] = []  # of CROWN: it is slow

    def interval_radius(
        self, test: Test = smallest, *, tried: Sequence[float] = (), margin: float = 1.0
    ) -> Tensor:
        """The largest radius at which interval bounds pass a test; 0 where none does.

        Args:
            test: Function of the margins `(M, k)` that is above 0 where they prove enough. It must
                not decrease when margins increase.
            tried: Radii to try after eps.
            margin: How many rounding margins to add.

        Returns:
            Radii `(N,)`, float64 on the CPU.
        """
        start = torch.zeros(len(self.x), dtype=torch.float64)
        return self._search(partial(leads, margin=margin), test, start, tried, _INTERVAL)

    def radius(
        self, test: Test = smallest, *, tried: Sequence[float] = (), enough: float | None = None
    ) -> Tensor:
        """The largest radius at which interval bounds or CROWN pass a test.

        Args:
            test: As in `interval_radius`.
            tried: Radii to try after eps.
            enough: CROWN is skipped if interval bounds reach this radius; the largest tried if
                None.
        """
        found = self.interval_radius(test, tried=tried)
        if self.crown:
            limit = max(self.eps, *tried, 0.0) if enough is None else enough
            rows = (found < limit).nonzero().squeeze(1)
            found[rows] = self._search(crown_leads, test, found, tried, _CROWN, rows)[rows]
        if test is smallest:
            self.right = found
        return found

    def _search(
        self,
        bound: Callable[..., Tensor],
        test: Test,
        low: Tensor,
        tried: Sequence[float],
        effort: tuple[int, float],
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Radii that pass: first those to try, then between the last that passed and failed.

        The place between is where a line through both values, each as a logarithm, meets 0: the
        values fall slowly before and steeply behind it.
        """
        low, high = low.clone(), torch.full_like(low, torch.inf)
        if chosen is not None:  # nothing lies between for the others
            high = torch.full_like(low, -torch.inf).index_fill_(0, chosen, torch.inf)
        clean = test(self._leads(leads, torch.arange(len(low)), torch.zeros_like(low)))
        at_low, at_high = clean.clamp_min(0).log1p().nan_to_num(1.0), torch.ones_like(low)

        def learn(rows: Tensor, radius: Tensor, found: Tensor) -> None:
            reached = test(found).where((radius > low[rows]) & (radius < high[rows]), torch.nan)
            held, lost = reached > 0, reached <= 0
            size = reached.abs().log1p()
            low[rows], high[rows] = radius.where(held, low[rows]), radius.where(lost, high[rows])
            at_low[rows] = size.where(held, at_low[rows])
            at_high[rows] = size.where(lost, at_high[rows])

        def ask(radius: Tensor) -> None:
            rows = ((radius > low) & (radius < high)).nonzero().squeeze(1)
            if not len(rows):
                return
            # What is no number is not proven.
            found = self._leads(bound, rows, radius[rows] + SPARE).nan_to_num(nan=-torch.inf)
            learn(rows, radius[rows], found)
            if bound is crown_leads:
                self._asked.append((rows, radius[rows], found))

        for answer in self._asked if bound is crown_leads else ():
            learn(*answer)
        for radius in (self.eps, *tried, self.most):
            if 0 < radius <= self.most:
                ask(torch.full_like(low, radius))
        for step in range(effort[0]):
            share = at_low / (at_low + at_high)
            share = torch.where(torch.tensor(step % 4 == 3), 0.5, share.clamp(0.1, 0.9))
            close = high - low <= effort[1] * high
            ask(torch.where(high.isfinite() & ~close, low + share * (high - low), low))
        return low

    def _leads(self, bound: Callable[..., Tensor], rows: Tensor, radius: Tensor) -> Tensor:
        """Bounds of some images `(M, k)`, float64 on the CPU."""
        there = rows.to(self.x.device)
        x, y, radius = self.x[there], self.y[there], radius.to(self.x.device)
        with torch.no_grad():
            found = bound(self.network, x, y, radius, num_classes=self.num_classes)
        return found.double().cpu()
