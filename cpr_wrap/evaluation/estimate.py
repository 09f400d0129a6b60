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
    """The estimated cost of a run.

    Attributes:
        images: Images in the run.
        probed: Images in the probe.
        passes_per_image: Measured on the probe.
        passes: Expected for the run.
        seconds: Expected for the run, at the probe's speed.
        audit_passes: Passes of the audit among them; 0 without an audit.
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
    """Estimate the cost of an evaluation from a few images.

    Small batches are slower per pass than full ones, so the time is more likely overestimated.

    Args:
        model: The selective classifier.
        x: Images `(N, ...)`, at least `probe` of them.
        y: True classes `(N,)`.
        eps: Budget of the adversary.
        budget: As in `robustness_curve`.
        num: Number of images in the run; all of `x` by default.
        probe: Number of images to evaluate.
        batch_size: As in `robustness_curve`.
        norm: As in `robustness_curve`.
        extras: As in `robustness_curve`.
        audited: Whether the run will be audited. An audit mostly uses a fixed number of images, so
            its cost on the probe is added without scaling.

    Example:
        >>> import torch
        >>> from cpr_wrap import Confidence, SelectiveClassifier
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
        >>> model = SelectiveClassifier(network, Confidence(threshold=0.6))
        >>> x = torch.rand(2, 1, 2, 2)
        >>> cost = estimate_cost(model, x, network(x).argmax(dim=1), 0.05, budget="quick", num=1000)
        >>> cost.images, cost.probed, cost.passes == 1000 * cost.passes_per_image
        (1000, 2, True)
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
