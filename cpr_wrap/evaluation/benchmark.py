"""How good the engine is: figures about cost, each a ratio of things measured in one run.

Every time is taken twice: on the clock, and as processor time of this process. On an idle machine
they say the same; on a busy one the clock also measures other people's work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from cpr_wrap.smoothing import smoothed, untouched
from cpr_wrap.solver import frozen

T = TypeVar("T")
Times = NDArray[np.float64]
"""Seconds on the clock, and seconds of processors that this process used `(2,)`."""

_ROUNDS = 7
_SAMPLE_SECONDS = 0.1  # about what a sample of each kind of bare passes takes
_BETWEEN_SAMPLES = 1.0  # seconds


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, Times]:
    """Do some work; also tell the times it takes, until the device is done with it."""
    start = _now()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, _now() - start


def _now() -> Times:
    return np.array([time.perf_counter(), time.process_time()])


class BarePasses:
    """The network alone, timed on a batch `(N, ...)` again and again during a run."""

    def __init__(self, model: SelectiveClassifier, x: Tensor) -> None:
        self.network, self.x = model.base, x
        self.spent = np.zeros(2)  # what taking samples took
        self._samples: list[Times] = []  # for one image, of each kind of pass (3, 2)
        self.run(1, self.forward_once)
        self.run(1, self.gradient_once)
        _, once = self.run(1, self.gradient_once)
        self.repeats = max(1, round(_SAMPLE_SECONDS / max(once, 1e-6)))  # passes in a sample

    def forward_once(self) -> None:
        """A forward of the whole batch."""
        with torch.no_grad():
            self.network(self.x)

    def gradient_once(self) -> None:
        """A forward of the whole batch, and the gradient at its input."""
        z = self.x.detach().requires_grad_()
        torch.autograd.grad(self.network(z).sum(), z)

    def smoothed_once(self) -> None:
        """A forward of the whole batch, and the smoothed gradient at its input."""
        with smoothed():
            self.gradient_once()

    def run(self, count: int, work: Callable[[], None]) -> Times:
        """Time one of these, done several times over."""

        def repeated() -> None:
            with frozen(self.network), torch.enable_grad():
                for _ in range(count):
                    work()

        return timed(repeated, self.x.device)[1]

    def sample(self) -> None:
        """Time all three once more."""
        kinds = (self.forward_once, self.gradient_once, self.smoothed_once)
        taken = np.stack([self.run(self.repeats, work) for work in kinds])
        self.spent = self.spent + taken.sum(axis=0)
        self._samples.append(taken / (self.repeats * len(self.x)))

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Take a sample about once a second, between passes of whatever runs in the block.

        A machine that is now faster and now slower then treats both alike.
        """
        last, busy = time.perf_counter(), False

        def before_a_pass(*_: object) -> None:
            nonlocal last, busy
            due = time.perf_counter() - last >= _BETWEEN_SAMPLES
            if due and not busy and untouched():
                busy = True
                self.sample()
                last, busy = time.perf_counter(), False

        hook = self.network.register_forward_pre_hook(before_a_pass)
        try:
            yield
        finally:
            hook.remove()

    @property
    def samples(self) -> int:
        """How often they were timed."""
        return len(self._samples)

    @property
    def average(self) -> Times:
        """One image's forward, its input gradient, and the smoothed one `(3, 2)`.

        The forward of a gradient is not counted in it.
        """
        forward, *gradients = np.mean(self._samples, axis=0)
        return np.stack([forward, *(np.maximum(both - forward, 0) for both in gradients)])

    def of(self, passes: Passes) -> Times:
        """What some passes would take if there were nothing else to do."""
        counts = (passes.forwards, passes.backwards - passes.smoothed, passes.smoothed)
        return np.asarray(counts @ self.average)


def prediction_cost(
    model: SelectiveClassifier, x: Tensor, *, rounds: int = _ROUNDS
) -> tuple[Times, Times]:
    """Time a prediction of a batch `(N, ...)`, in turns with the bare passes it is made of.

    For CPR these are m (forward + input gradient) + forward. Returns what a prediction takes, and
    the median of its ratios to its bare passes, over `rounds` turns after one that does not count.
    """
    bare = BarePasses(model, x)
    with count_passes() as passes:
        model(x)
    gradients = passes.backwards // len(x)
    forwards = passes.forwards // len(x) - gradients  # a bare gradient brings its own forward
    predictions, ratios = [], []
    for _ in range(rounds + 1):
        _, taken = timed(lambda: model(x), x.device)
        alone = bare.run(gradients, bare.gradient_once) + bare.run(forwards, bare.forward_once)
        predictions.append(taken)
        ratios.append(taken / alone)
    return np.median(predictions[1:], axis=0), np.median(ratios[1:], axis=0)


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
    samples: int  #: How often the bare passes were timed.


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

    The bare passes are timed before the evaluation and about once a second during it; the time for
    that is taken off.
    """
    x = noisy_batch(model, data.images, batch_size, eps)
    prediction, ratio = prediction_cost(model, x)
    bare = BarePasses(model, x)
    bare.sample()
    before = bare.spent
    with count_passes() as passes, bare.sampling():
        curve, whole = timed(
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
    spent = whole - (bare.spent - before)
    efficiency = bare.of(passes) / spent
    forward, backward, smoothed_backward = bare.average[:, 0].tolist()
    return Figures(
        forward=forward,
        backward=backward,
        smoothed=smoothed_backward,
        prediction=float(prediction[0]) / len(x),
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
        samples=bare.samples,
    )


def noisy_batch(model: SelectiveClassifier, images: Tensor, size: int, eps: float) -> Tensor:
    """A batch of images `(N, ...)`, taken over and over, with noise, to time bare passes on.

    The time of a pass depends on the pixels: pooling walks through flat regions faster, and clean
    images have more of them than the points that attacks ask about.
    """
    x = torch.cat([images] * -(-size // len(images)))[:size]
    noisy = LINF.uniform_offset(x, eps, noise.keys(0, torch.arange(size)))
    return LINF.project(x + noisy, x, eps).to(network_device(model.base))
