"""Times of a network, of a prediction and of an evaluation, taken in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap.data import ImageData
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.meter import count_passes
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.solver import frozen

_ROUNDS = 7


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; times are in seconds for one image.

    Attributes:
        forward: A bare forward.
        backward: A bare input gradient, its forward not counted.
        prediction: One answer of the selective classifier.
        prediction_ratio: That, over the bare time of the passes it makes.
        images: Images of the evaluation.
        passes_per_image: Forwards and backwards of the evaluation.
        seconds: Wall time of the whole evaluation.
        efficiency: Bare time of the evaluation's passes, over its wall time.
    """

    forward: float
    backward: float
    prediction: float
    prediction_ratio: float
    images: int
    passes_per_image: float
    seconds: float
    efficiency: float


def measure(
    model: SelectiveClassifier, data: ImageData, eps: float, *, budget: str, batch_size: int
) -> Figures:
    """Take all figures at one batch size.

    Args:
        model: The selective classifier.
        data: Images to evaluate.
        eps: Budget of the adversary in pixel units.
        budget: How hard to attack.
        batch_size: Rows in a batch.
    """
    device = next((p.device for p in model.base.parameters()), torch.device("cpu"))
    repeats = -(-batch_size // len(data))
    x = torch.cat([data.images] * repeats)[:batch_size].to(device)
    with frozen(model.base):
        forward = _seconds(lambda: _forward(model, x), x) / batch_size
        both = _seconds(lambda: _gradient(model, x), x) / batch_size
        prediction = _seconds(lambda: model(x), x) / batch_size
    backward = max(both - forward, 0.0)
    with count_passes() as passes:
        model(x)
    bare = (passes.forwards * forward + passes.backwards * backward) / batch_size
    curve = robustness_curve(
        model, data.images, data.labels, eps, budget=budget, batch_size=batch_size
    )
    total = curve.details["passes_total"]
    seconds = curve.details["seconds"]
    return Figures(
        forward=forward,
        backward=backward,
        prediction=prediction,
        prediction_ratio=prediction / bare,
        images=len(data),
        passes_per_image=total["per_image"],
        seconds=seconds,
        efficiency=(total["forwards"] * forward + total["backwards"] * backward) / seconds,
    )


def _forward(model: SelectiveClassifier, x: Tensor) -> None:
    with torch.no_grad():
        model.base(x)


def _gradient(model: SelectiveClassifier, x: Tensor) -> None:
    z = x.detach().requires_grad_()
    torch.autograd.grad(model.base(z).sum(), z)


def _seconds(work: Callable[[], object], x: Tensor) -> float:
    """Median time of some work, after one round that does not count."""
    times = []
    for turn in range(_ROUNDS + 1):
        started = time.perf_counter()
        work()
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)
        if turn:
            times.append(time.perf_counter() - started)
    return statistics.median(times)
