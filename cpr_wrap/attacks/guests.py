"""Room for attacks of other packages: they may seed, draw and print, and leave no trace."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from cpr_wrap import noise
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
    with (
        torch.inference_mode(False),
        frozen(network),
        random_state(seed),
        quiet(logger, verbose),
    ):
        yield
