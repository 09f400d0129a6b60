"""What an evaluation will cost, from a short probe."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cpr_wrap.attacks.ensemble import Budget
from cpr_wrap.evaluation.auditing import audit
from cpr_wrap.evaluation.curve import robustness_curve
from cpr_wrap.meter import Passes, count_passes
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
        audit_passes: Of these, passes of the audit; 0 without one.
    """

    images: int
    probed: int
    passes_per_image: float
    passes: float
    seconds: float
    audit_passes: float = 0.0


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
    extras: Iterable[Any] = (),
    audited: bool = False,
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
        extras: As in `robustness_curve`.
        audited: Whether the run will be audited. Most of an audit is done on a few images, whatever
            their number, so that what it takes on the probe is added as it is.
    """
    few, labels = x[:probe], y[:probe]
    options: dict[str, Any] = {"batch_size": batch_size, "norm": norm, "extras": extras}
    curve = robustness_curve(model, few, labels, eps, budget=budget, **options)
    count = num if num is not None else len(x)
    per_image = curve.passes_per_image
    seconds = sum(stage.seconds for stage in curve.passes)
    extra, spent = 0.0, Passes()
    if audited:
        began = time.perf_counter()
        with count_passes() as spent:
            audit(model, curve)
        extra = time.perf_counter() - began
    return Estimate(
        images=count,
        probed=len(few),
        passes_per_image=per_image,
        passes=per_image * count + spent.total,
        seconds=seconds / len(few) * count + extra,
        audit_passes=float(spent.total),
    )
