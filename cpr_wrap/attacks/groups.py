"""Images under attack by a package that passes points around without saying whose they are."""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap.attacks.adapters import GoalLogits
from cpr_wrap.geometry import spread, threat
from cpr_wrap.selective import SelectiveClassifier


@dataclass(frozen=True, eq=False)
class Group:
    """Images `(M, ...)` under attack, their true classes `(M,)` and data-set numbers `(M,)`."""

    model: SelectiveClassifier
    x: Tensor
    y: Tensor
    index: Tensor
    eps: float
    norm: str
    seed: int

    def take(self, rows: Tensor) -> Group:
        """Some of the images."""
        return replace(self, x=self.x[rows], y=self.y[rows], index=self.index[rows])

    def recognise(self, x: Tensor) -> Tensor:
        """Which of our images these are, `(N, ...)` to row numbers `(N,)`."""
        return (_fingerprint(x)[:, None] == _fingerprint(self.x)).int().argmax(dim=1)

    def climb(self, run: Callable[..., Any], name: str, view: nn.Module) -> Callable[..., Any]:
        """APGD's climb, from a random start that depends on the image and not on its batch.

        As in AutoAttack the start is on the surface of the ball, in a random direction. `run` is
        the method `attack_single_run(x, y, x_init)` of one of its attacks, `name` the component.
        """
        around = threat(self.norm)
        calls = itertools.count()

        def started(x: Tensor, y: Tensor, x_init: Tensor | None = None) -> Any:
            if x_init is None:
                parts = (zlib.crc32(name.encode()), self.index[self.recognise(x)], next(calls))
                offset = around.uniform_offset(x, 1.0, noise.keys(self.seed, *parts))
                length = around.distance(offset, torch.zeros_like(offset))
                x_init = x + offset * spread(self.eps / length, x).to(x.dtype)
            with view.aware(y) if isinstance(view, Recognised) else contextlib.nullcontext():
                return run(x, y, x_init=x_init)

        return started


class Recognised(nn.Module):
    """`GoalLogits` for images of several classes, as APGD asks for them.

    Between climbs it asks about the images themselves, or those that still stand, and these can be
    recognized. During a climb it asks about all points of the climb, whose classes it was given.
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group
        self._y: Tensor | None = None

    @contextlib.contextmanager
    def aware(self, y: Tensor) -> Iterator[None]:
        """Take all points inside the block as of the classes `(N,)`."""
        self._y = y
        try:
            yield
        finally:
            self._y = None

    def forward(self, x: Tensor) -> Tensor:
        """Columns `(N, k)` for points `(N, ...)`."""
        group = self._group
        y = group.y[group.recognise(x)] if self._y is None else self._y
        return GoalLogits(group.model, y, group.x.dtype)(x)  # type: ignore[no-any-return]


def _fingerprint(x: Tensor) -> Tensor:
    """A number for each image `(N, ...)`, from its bits as AutoAttack sees them `(N,)`."""
    bits = x.float().flatten(1).contiguous().view(torch.int32).long()
    weight = noise.keys(0, torch.arange(bits.shape[1], device=x.device))
    return (bits * weight).sum(dim=1)
