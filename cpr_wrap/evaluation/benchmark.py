"""How good the engine is: figures about cost, each a ratio of things measured in one run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap.attacks.ensemble import Budget
from cpr_wrap.data import ImageData
from cpr_wrap.evaluation.curve import robustness_curve
from cpr_wrap.evaluation.timing import BarePasses, prediction_cost, timed
from cpr_wrap.geometry import LINF
from cpr_wrap.meter import count_passes
from cpr_wrap.selective import SelectiveClassifier, network_device


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

    The bare passes are timed before the evaluation and after each of its stages, so that a machine
    that is now faster and now slower treats both alike; the time for that is taken off.

    Args:
        model: The selective classifier.
        data: Images to evaluate.
        eps: Budget of the adversary in pixel units.
        budget: How hard to attack.
        batch_size: Rows in a batch.
        norm: As in `robustness_curve`.
    """
    x = noisy_batch(model, data.images, batch_size, eps)
    prediction, ratio = prediction_cost(model, x)
    bare = BarePasses(model, x)
    bare.sample()
    before = bare.spent
    with count_passes() as passes:
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
                progress=lambda _: bare.sample(),
            ),
            x.device,
        )
    spent = whole - (bare.spent - before)
    efficiency = bare.of(passes) / spent
    return Figures(
        forward=bare.forward.wall,
        backward=bare.backward.wall,
        smoothed=bare.smoothed.wall,
        prediction=prediction.wall / len(x),
        prediction_ratio=ratio.wall,
        images=len(data),
        batch_size=batch_size,
        threads=torch.get_num_threads(),
        passes_per_image=curve.passes_per_image,
        seconds=spent.wall,
        smoothed_share=passes.smoothed / max(1, passes.backwards),
        efficiency=efficiency.wall,
        cpu_seconds=spent.cpu,
        cpu_efficiency=efficiency.cpu,
        cpu_prediction_ratio=ratio.cpu,
        samples=bare.samples,
    )


def noisy_batch(model: SelectiveClassifier, images: Tensor, size: int, eps: float) -> Tensor:
    """A full batch like those of an evaluation, to time bare passes on.

    The time of a pass depends on the pixels: pooling walks through flat regions faster, and clean
    images have more of them than the points that attacks ask about.

    Args:
        model: Says which device.
        images: Images `(N, ...)`, taken over and over if they are too few.
        size: Rows of the batch.
        eps: How much noise every pixel gets at most.
    """
    x = torch.cat([images] * -(-size // len(images)))[:size]
    noisy = LINF.uniform_offset(x, eps, noise.keys(0, torch.arange(size)))
    return LINF.project(x + noisy, x, eps).to(network_device(model.base))
