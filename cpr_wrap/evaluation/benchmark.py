"""How good the engine is: figures about cost, each a ratio of things measured in one run.

Every time is taken twice: on the clock, and as processor time of this process. On an idle machine
they say the same; on a busy one the clock also measures other people's work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap.attacks.ensemble import Budget
from cpr_wrap.data import ImageData
from cpr_wrap.evaluation.curve import robustness_curve
from cpr_wrap.geometry import LINF
from cpr_wrap.meter import Passes, count_passes
from cpr_wrap.selective import SelectiveClassifier, network_device
from cpr_wrap.smoothing import smoothed
from cpr_wrap.solver import frozen

T = TypeVar("T")
Times = NDArray[np.float64]
"""Seconds on the clock, and seconds of processors that this process used `(2,)`."""

_ROUNDS = 7
_SAMPLE_SECONDS = 0.1  # how long a time is taken, where one pass does not last longer


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, Times]:
    """Do some work; also tell the times it takes, until the device is done with it."""
    start = _now()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, _now() - start


def _now() -> Times:
    return np.array([time.perf_counter(), time.process_time()])


def bare_times(model: SelectiveClassifier, x: Tensor) -> Times:
    """Time a forward of a batch `(N, ...)`, its input gradient, the smoothed one, and a prediction.

    A gradient is without its forward. Several rounds of all four in turn `(R, 4, 2)`: a machine
    that is now faster and now slower treats them alike.
    """

    def forward() -> None:
        with torch.no_grad():
            model.base(x)

    def gradient() -> None:
        z = x.detach().requires_grad_()
        torch.autograd.grad(model.base(z).sum(), z)

    def smoothed_gradient() -> None:
        with smoothed():
            gradient()

    def run(work: Callable[[], object], count: int) -> Times:
        return timed(lambda: [work() for _ in range(count)], x.device)[1] / count

    kinds = (forward, gradient, smoothed_gradient, lambda: model(x))
    with frozen(model.base), torch.enable_grad():
        once = [run(work, 1)[0] for work in kinds]  # the first calls are slower, and do not count
        counts = [max(1, round(_SAMPLE_SECONDS / max(seconds, 1e-6))) for seconds in once]
        pairs = list(zip(kinds, counts, strict=True))
        rounds: Times = np.array([[run(*pair) for pair in pairs] for _ in range(_ROUNDS)])
    rounds[:, 1:3] = np.maximum(rounds[:, 1:3] - rounds[:, :1], 0)
    return rounds


def _alone(passes: Passes, times: Times) -> Times:
    """What passes would take if there were nothing else to do, from `(..., 4, 2)` single times."""
    counts = (passes.forwards, passes.backwards - passes.smoothed, passes.smoothed)
    return np.asarray(counts @ times[..., :3, :])


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; times are in seconds for one image."""

    forward: float  #: A bare forward.
    backward: float  #: A bare input gradient, its forward not counted.
    smoothed: float  #: The same with a smoothed backward.
    prediction: float  #: One answer of the selective classifier.
    prediction_ratio: float  #: That, over the bare time of the passes it makes.
    images: int  #: Images of the evaluation.
    batch_size: int  #: Rows in a batch, of the evaluation and of the bare passes.
    threads: int  #: Threads of torch.
    passes_per_image: float  #: Forwards and backwards of the evaluation.
    seconds: float  #: Wall time of the whole evaluation.
    smoothed_share: float  #: Share of the backwards that were smoothed.
    efficiency: float  #: Bare time of the evaluation's passes, over its wall time.
    cpu_seconds: float  #: Processor time of the whole evaluation.
    cpu_efficiency: float  #: `efficiency` in processor time.
    cpu_prediction_ratio: float  #: `prediction_ratio` in processor time.


def measure(
    model: SelectiveClassifier,
    data: ImageData,
    eps: float,
    *,
    budget: str | Budget = "standard",
    batch_size: int = 128,
    norm: str | None = None,
) -> Figures:
    """Time the network, a prediction and an evaluation at one batch size.

    Bare passes and predictions are timed before the evaluation and after it.
    """
    x = noisy_batch(model, data.images, batch_size, eps)
    before = bare_times(model, x)
    with count_passes() as passes:
        curve, spent = timed(
            lambda: robustness_curve(
                model,
                data.images,
                data.labels,
                eps,
                indices=data.indices,
                budget=budget,
                batch_size=batch_size,
                norm=norm,
            ),
            x.device,
        )
    rounds = np.concatenate([before, bare_times(model, x)]) / len(x)  # times of one image
    with count_passes() as predicting:
        model(x[:1])
    efficiency = _alone(passes, rounds.mean(axis=0)) / spent
    ratio = np.median(rounds[:, 3] / _alone(predicting, rounds), axis=0)
    forward, gradient, smoothed_gradient, _ = rounds.mean(axis=0)[:, 0].tolist()
    return Figures(
        forward=forward,
        backward=gradient,
        smoothed=smoothed_gradient,
        prediction=float(np.median(rounds[:, 3, 0])),
        prediction_ratio=float(ratio[0]),
        images=len(data),
        batch_size=batch_size,
        threads=torch.get_num_threads(),
        passes_per_image=curve.passes_per_image,
        seconds=float(spent[0]),
        smoothed_share=passes.smoothed / max(1, passes.backwards),
        efficiency=float(efficiency[0]),
        cpu_seconds=float(spent[1]),
        cpu_efficiency=float(efficiency[1]),
        cpu_prediction_ratio=float(ratio[1]),
    )


def noisy_batch(model: SelectiveClassifier, images: Tensor, size: int, eps: float) -> Tensor:
    """A batch of images `(N, ...)`, taken over and over, with noise, to time bare passes on.

    The time of a pass depends on the pixels: pooling walks through flat regions faster, and clean
    images have more of them than the points that attacks ask about.
    """
    x = torch.cat([images] * -(-size // len(images)))[:size]
    noisy = LINF.uniform_offset(x, eps, noise.keys(0, torch.arange(size)))
    return LINF.project(x + noisy, x, eps).to(network_device(model.base))
