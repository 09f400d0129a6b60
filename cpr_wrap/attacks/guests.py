"""Room for attacks of other packages: they may seed, draw and print, and leave no trace.

A package passes points around without saying whose they are: a `Group` recognizes its images.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import random
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap._checks import check_eps, check_labels
from cpr_wrap.attacks.adapters import GoalLogits
from cpr_wrap.geometry import spread, threat
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.solver import frozen


def batch_seed(seed: int, index: Tensor) -> int:
    """One seed for a batch, from the run's seed and the images' numbers `(N,)`.

    For draws that a package shares between the rows of a batch. It is the same whenever the same
    images are attacked together.
    """
    return int(noise.keys(seed, index).sum()) & 0x7FFFFFFF


@contextlib.contextmanager
def random_state(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python inside the block only."""
    python, numeric = random.getstate(), np.random.get_state()
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    on_gpu = torch.cuda.is_initialized()
    gpus = range(torch.cuda.device_count()) if on_gpu else ()
    try:
        with torch.random.fork_rng(devices=gpus):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numeric)
        if mps is not None:
            torch.mps.set_rng_state(mps)
        if torch.cuda.is_available() and not on_gpu:
            # Seeding before CUDA has started is noted down for its start; note the old seed again.
            torch.cuda.manual_seed_all(torch.initial_seed())


@contextlib.contextmanager
def quiet(logger: str, verbose: bool) -> Iterator[None]:
    """Hold back what a package prints, warns and logs inside the block, unless `verbose`."""
    if verbose:
        yield
        return
    log = logging.getLogger(logger)
    before, log.disabled = log.disabled, True
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before


@contextlib.contextmanager
def guest(network: nn.Module, seed: int, *, logger: str, verbose: bool = False) -> Iterator[None]:
    """Let another package attack a network.

    Parameter gradients are disabled inside, so that a stray `backward()` changes nothing. The
    global generators are seeded, and given back as they were. Only if `verbose` may the package
    print, warn, and log to the logger of this name.
    """
    with torch.inference_mode(False), frozen(network), random_state(seed), quiet(logger, verbose):
        yield


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

    def recognize(self, x: Tensor) -> Tensor:
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
                parts = (zlib.crc32(name.encode()), self.index[self.recognize(x)], next(calls))
                offset = around.uniform_offset(x, 1.0, noise.keys(self.seed, *parts))
                length = around.distance(offset, torch.zeros_like(offset))
                x_init = x + offset * spread(self.eps / length, x).to(x.dtype)
            with view.aware(y) if isinstance(view, Recognized) else contextlib.nullcontext():
                return run(x, y, x_init=x_init)

        return started


class GroupAttack(ABC):
    """A proposer that is given what it attacks as one group."""

    def perturb(
        self, model: SelectiveClassifier, x: Tensor, y: Tensor, eps: float, **where: Any
    ) -> Tensor:
        """Propose one point per image; see `Proposer`."""
        check_eps(eps)
        check_labels(y, len(x))
        group = Group(model, x, y.long(), eps=eps, **where)
        threat(group.norm)
        return self._points(group)

    @abstractmethod
    def _points(self, group: Group) -> Tensor:
        """One point for each image of a group `(M, ...)`."""


class Recognized(nn.Module):
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
        y = group.y[group.recognize(x)] if self._y is None else self._y
        return GoalLogits(group.model, y, group.x.dtype)(x)  # type: ignore[no-any-return]


def _fingerprint(x: Tensor) -> Tensor:
    """A number for each image `(N, ...)`, from its bits as AutoAttack sees them `(N,)`."""
    bits = x.float().flatten(1).contiguous().view(torch.int32).long()
    weight = noise.keys(0, torch.arange(bits.shape[1], device=x.device))
    return (bits * weight).sum(dim=1)
