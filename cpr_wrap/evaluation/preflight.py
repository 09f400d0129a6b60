"""Checks before an attack: is the network's output a function of the image alone?"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from cpr_wrap.diagnose import input_gradient_report
from cpr_wrap.engine.memory import NO_ROOM, is_out_of_memory
from cpr_wrap.selective import SelectiveClassifier, check_finite, network_dtype
from cpr_wrap.zoo.checks import PROBABILITIES, looks_like_probabilities

# Of the largest output: other batch sizes round differently, in half precision much more so.
_ROUNDING, _HALF_ROUNDING = 1e-3, 3e-2
_AGAIN = 1e-4  # the same batch twice, which is hardly rounded otherwise
_FEW = 8


def preflight(model: SelectiveClassifier, x: Tensor) -> tuple[str, ...]:
    """Refuse networks whose evaluation would mean nothing; note what weakens attacks.

    Args:
        model: The selective classifier.
        x: Images `(N, ...)` on the model's device; only the first few are used.

    Returns:
        Notes for the result.
    """
    if model.rule.stochastic:
        raise ValueError(
            f"rule {model.rule.name!r} is random, and random verdicts cannot be evaluated yet"
        )
    return _checked(model, x[:_FEW])


def _checked(model: SelectiveClassifier, x: Tensor) -> tuple[str, ...]:
    try:
        notes = (*_check_outputs(model, x), *_gradients(model, x))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(x) == 1:
            raise RuntimeError(NO_ROOM) from error
        return _checked(model, x[: len(x) // 2])
    for note in notes:
        warnings.warn(note, stacklevel=5)
    return notes


def _check_outputs(model: SelectiveClassifier, x: Tensor) -> list[str]:
    before = x.clone()
    with torch.no_grad():
        outputs = model.outputs(x)
        if not torch.equal(x, before):
            raise ValueError("the network changes its input in place; give it a copy, x.clone()")
        check_finite(outputs)
        half = network_dtype(model.base) in (torch.float16, torch.bfloat16)
        most = _HALF_ROUNDING if half else _ROUNDING
        _same(outputs, model.outputs(x), most if half else _AGAIN, _RANDOM)
        try:
            alone = torch.cat([model.outputs(row) for row in x.split(1)])
        except ValueError as error:
            raise ValueError(f"the network fails on a batch of one image: {error}") from error
        _same(outputs, alone, most, _COMPANY)
    return [PROBABILITIES] if looks_like_probabilities(outputs) else []


_RANDOM = (
    "the network gives different outputs for the same images: it is random (dropout that is "
    "always on, noise, a clock). Random networks cannot be evaluated yet; fix the seed"
)
_COMPANY = (
    "the network's outputs for an image depend on the rest of the batch (batch statistics in eval "
    "mode?), so an attack on one image would change another"
)


def _same(one: Tensor, other: Tensor, most: float, why: str) -> None:
    largest = one.abs().amax().clamp_min(1e-6)
    gap = float(((one - other).abs().amax() / largest).nan_to_num(torch.inf))
    if gap > most:
        raise ValueError(f"{why}; outputs differ by up to {gap:.1%} of the largest")


def _gradients(model: SelectiveClassifier, x: Tensor) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of becomes a note
        report = input_gradient_report(model, x)
    notes = []
    if report.flat_images:
        notes.append(
            f"{report.flat_images} of {report.num_images} images tried have no input gradient at "
            "all; gradient attacks cannot work there, so robustness is overstated"
        )
    if report.nonfinite:
        notes.append(
            f"{report.nonfinite:.1%} of input gradients are NaN or infinite and are treated as 0"
        )
    return notes
