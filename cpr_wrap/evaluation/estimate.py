"""What an evaluation will cost, from a short probe."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cpr_wrap.attacks.ensemble import Budget
from cpr_wrap.evaluation.curve import robustness_curve
from cpr_wrap.selective import SelectiveClassifier


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the probe suggests for a whole run.

    Attributes:
        images: Images of the run.
        probed: Images of the probe.
        passes_per_image: Measured on the probe.
        passes: Expected for the run.
        seconds: Expected for the run, at the probe's speed.
    """

    images: int
    probed: int
    passes_per_image: float
    passes: float
    seconds: float


def estimate_cost(
    model: SelectiveClassifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    budget: str | Budget = "standard",
    num: int | None = None,
    probe: int = 8,
    batch_size: int | None = None,
    norm: str | None = None,
) -> Estimate:
    """Evaluate a few images and scale up.

    Small batches are slower per pass than full ones, so the time is rather over- than
    underestimated.

    Args:
        model: The selective classifier.
        x: Images `(N, ...)`, at least `probe` of them.
        y: True classes `(N,)`.
        eps: Budget of the adversary.
        budget: As in `robustness_curve`.
        num: Images of the run, all of `x` if left out.
        probe: Images to try.
        batch_size: As in `robustness_curve`.
        norm: As in `robustness_curve`.
    """
    few, labels = x[:probe], y[:probe]
    curve = robustness_curve(
        model, few, labels, eps, budget=budget, batch_size=batch_size, norm=norm
    )
    count = num if num is not None else len(x)
    per_image = float(curve.details["passes_total"]["per_image"])
    return Estimate(
        images=count,
        probed=len(few),
        passes_per_image=per_image,
        passes=per_image * count,
        seconds=float(curve.details["seconds"]) / len(few) * count,
    )
