"""Checks before an attack: are outputs and verdicts functions of the image alone?"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from cpr_wrap.attacks.guests import random_state
from cpr_wrap.diagnose import InputGradientReport, input_gradient_report
from cpr_wrap.engine.images import ImageSource
from cpr_wrap.engine.precision import NO_ROOM, is_out_of_memory
from cpr_wrap.engine.stages import from_outside, proposals
from cpr_wrap.geometry import ThreatModel
from cpr_wrap.selective import SelectiveClassifier, check_finite, network_device, network_dtype
from cpr_wrap.zoo.checks import PROBABILITIES, looks_like_probabilities

# Of the largest output: other batch sizes round differently, in half precision much more so.
_ROUNDING, _HALF_ROUNDING = 1e-3, 3e-2
_AGAIN = 1e-4  # the same batch twice, which is hardly rounded otherwise
_FEW, _FEWER = 8, 3  # images for the network; for verdicts, which cost more
# Of the largest score, where a path of many steps starts from gradients that vary by rounding.
_CHAOS = 0.5
_LARGEST_SLACK = 0.01  # of eps, that rounding may take off the budget


def check_threat(around: ThreatModel, eps: float, x: Tensor) -> None:
    """Refuse a budget that means nothing for images in [0, 1], before any work."""
    whole = around.everything(x)
    if eps > whole:
        hint = f"; did you mean {eps:g}/255 = {eps / 255:.4g}?" if eps / 255 <= whole else ""
        raise ValueError(
            f"eps: pixels are in [0, 1], and {around.name} {whole:g} already reaches every image, "
            f"got {eps:g}{hint}"
        )
    slack = around.slack(x)
    if slack > _LARGEST_SLACK * eps:
        raise ValueError(
            f"eps: {eps:g} is too small for {x.dtype}, whose rounding takes {slack:.2g} off it; "
            "give the images in float64"
        )


def preflight(model: SelectiveClassifier, x: Tensor) -> tuple[str, ...]:
    """Refuse what cannot be evaluated on images `(N, ...)`; notes on what weakens attacks."""
    if model.rule.stochastic:
        raise ValueError(
            f"rule {model.rule.name!r} is random, and random verdicts cannot be evaluated yet"
        )
    x = x[:_FEW]
    while True:
        try:
            notes = (*_check_outputs(model, x), *_gradients(model, x))
            _check_verdicts(model, x[:_FEWER])
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(x) == 1:
                raise RuntimeError(NO_ROOM) from error
        x = x[: len(x) // 2]
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return notes


def place_of(model: SelectiveClassifier, source: ImageSource) -> tuple[torch.device, torch.dtype]:
    """The device of the model, and the precision of images: never below float32."""
    given = source.x if isinstance(source.x, Tensor) else None
    device = network_device(model.base, None if given is None else given.device)
    wanted = network_dtype(model.base) or (torch.float32 if given is None else given.dtype)
    if given is not None and device.type != "mps":
        wanted = torch.promote_types(wanted, given.dtype)
    return device, torch.promote_types(wanted, torch.float32)


def try_attacks(
    stages: Iterable[Any],
    model: SelectiveClassifier,
    source: ImageSource,
    eps: float,
    norm: str,
    seed: int = 0,
) -> None:
    """Let attacks from outside propose a point for one image, before others spend hours on all."""
    one = source.block(range(1), *place_of(model, source))
    for stage in filter(from_outside, stages):
        with random_state(seed):  # what they draw here must not change what they draw later
            proposals(stage, model, one, eps, norm, seed)


def _check_outputs(model: SelectiveClassifier, x: Tensor) -> list[str]:
    before = x.clone()
    with torch.no_grad():
        outputs = model.outputs(x)
        if not torch.equal(x, before):
            raise ValueError("the network changes its input in place; give it a copy, x.clone()")
        check_finite(outputs)
        again, alone = _rounding(model)
        gap = _gap(outputs, model.outputs(x))
        if gap > again:
            raise ValueError(
                "the network gives different outputs for the same images: it is random (dropout "
                "that is always on, noise, a clock). Random networks cannot be evaluated yet; fix "
                f"the seed; outputs differ by up to {gap:.2%} of the largest"
            )
        try:
            gap = _gap(outputs, torch.cat([model.outputs(row) for row in x.split(1)]))
        except ValueError as error:
            raise ValueError(f"the network fails on a batch of one image: {error}") from error
        if gap > alone:
            raise ValueError(
                "the network's outputs for an image depend on the rest of the batch (batch "
                "statistics in eval mode?), so an attack on one image would change another; "
                f"outputs differ by up to {gap:.2%} of the largest"
            )
    return [PROBABILITIES] if looks_like_probabilities(outputs) else []


def _rounding(model: SelectiveClassifier) -> tuple[float, float]:
    """How far answers may differ by rounding, as shares of the largest: again, and alone."""
    half = network_dtype(model.base) in (torch.float16, torch.bfloat16)
    return (_HALF_ROUNDING, _HALF_ROUNDING) if half else (_AGAIN, _ROUNDING)


def _gap(one: Tensor, other: Tensor) -> float:
    """How far tensors are apart, as a share of the largest finite number in the first."""
    largest = one.abs().nan_to_num(0.0, 0.0).amax().clamp_min(1e-6)
    apart = (one - other).abs().nan_to_num(torch.inf)
    return float(apart.masked_fill(one == other, 0).amax() / largest)


def _check_verdicts(model: SelectiveClassifier, x: Tensor) -> None:
    """Refuse a rule whose score is random, or depends on the rest of the batch.

    A path of many steps turns the rounding of another batch size into other scores. So the network
    gets every image by itself here, and whatever still differs is the rule's doing.
    """
    name, twin = f"rule {model.rule.name!r}", copy.copy(model)
    vars(twin)["outputs"] = lambda z: torch.cat([model.outputs(row) for row in z.split(1)])
    score = twin.judge(x).score
    if score.shape != (len(x),):
        raise ValueError(
            f"{name}: expected one score per image, shape ({len(x)},), got {tuple(score.shape)}"
        )
    again, alone = _rounding(model)
    try:
        gap = _gap(score, torch.cat([twin.judge(row).score for row in x.split(1)]))
    except (ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(f"{name} fails on a batch of one image: {error}") from error

    def excused(gap: float) -> bool:
        return bool(model.rule.cost.backwards) and gap <= _CHAOS and not _repeats(model, x)

    if gap <= alone or excused(gap):
        return
    repeated = _gap(score, twin.judge(x).score)  # a random rule got here too; asked again, it shows
    if repeated > again and not excused(repeated):
        raise ValueError(
            f"{name} gives the same images different scores: it is random (noise, dropout, a "
            "clock). Random verdicts cannot be evaluated yet; draw its noise from cpr_wrap.noise, "
            f"with a fixed key; scores differ by up to {repeated:.2%} of the largest"
        )
    raise ValueError(
        f"{name} gives an image another score in a batch than alone (statistics of the batch, "
        "noise by the place in it?), so that an attack on one image would change another; score "
        f"every row by itself; scores differ by up to {gap:.2%} of the largest"
    )


def _repeats(model: SelectiveClassifier, x: Tensor) -> bool:
    """Whether the network's gradient is the same to the last bit in two calls, on this device."""
    gradients: list[Tensor] = []
    for _ in range(2):
        with torch.enable_grad():
            z = x.detach().clone().requires_grad_()
            gradients += torch.autograd.grad(model.logits(z).square().sum(), z)
    return torch.equal(*gradients)


def gradient_report(model: SelectiveClassifier, x: Tensor) -> InputGradientReport:
    """What is known of the input gradients at `x` `(N, ...)`; without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of becomes a note, or a check
        return input_gradient_report(model, x)


def num_classes(model: SelectiveClassifier, x: Tensor) -> int:
    """k, from the answer to the first of some images `(N, ...)`."""
    with torch.no_grad():
        return model.logits(x[:1]).shape[1]


def _gradients(model: SelectiveClassifier, x: Tensor) -> list[str]:
    report, notes = gradient_report(model, x), []
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
