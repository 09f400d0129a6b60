"""Room for attacks of other packages: they may seed, draw and print, and leave no trace."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap._checks import check_eps, check_labels
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

    def start(self, x: Tensor, name: str, turn: int) -> Tensor:
        """Random starts for the images `x`, which depend on each image and not on its batch.

        As in AutoAttack they are on the surface of the ball, in a random direction. Every attack,
        by its name, and every turn of it has starts of its own.
        """
        around, parts = threat(self.norm), (zlib.crc32(name.encode()), self.index, turn)
        offset = around.uniform_offset(x, 1.0, noise.keys(self.seed, *parts))
        length = around.distance(offset, torch.zeros_like(offset))
        return x + offset * spread(self.eps / length, x).to(x.dtype)


class GroupAttack(ABC):
    """A proposer that is given what it attacks as one group."""

    def perturb(
        self,
        model: SelectiveClassifier,
        x: Tensor,
        y: Tensor,
        eps: float,
        *,
        norm: str,
        seed: int,
        index: Tensor,
    ) -> Tensor:
        """Propose one point per image; see `Proposer`."""
        check_eps(eps)
        check_labels(y, len(x))
        threat(norm)
        return self._points(Group(model, x, y.long(), index, eps, norm, seed))

    @abstractmethod
    def _points(self, group: Group) -> Tensor:
        """One point for each image of a group `(M, ...)`."""
