"""`certify`: what bounds prove about a selective classifier around images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cpr_wrap._checks import check_eval_mode, check_number
from cpr_wrap.bounds import Proof
from cpr_wrap.engine import ranks
from cpr_wrap.engine.images import source_of
from cpr_wrap.evaluation.preflight import check_threat, num_classes
from cpr_wrap.geometry import threat
from cpr_wrap.metrics.certificate import COLUMNS, Certificate
from cpr_wrap.rule import RejectionRule
from cpr_wrap.selective import SelectiveClassifier, network_device, network_dtype

_AT_ONCE = 16
_BEYOND = 1e-6  # so that rounding of sums does not end a search just below what is asked for


def certify(
    model: SelectiveClassifier,
    x: Tensor | Dataset[Any] | DataLoader[Any],
    y: Tensor | None,
    eps: float,
    *,
    crown: bool = True,
    indices: Sequence[int] | Tensor | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Certificate:
    """Prove how far around each image a selective classifier neither errs nor rejects.

    The radii are Linf radii. They also hold in L2, where every distance is at least as large. The
    proofs are about the network in its own precision, rounding included.

    Args:
        model: The selective classifier. Its rule must declare a certificate, and its network must
            consist of layers with bounds.
        x: Images `(N, ...)` in [0, 1], or a data set or loader of (image, label).
        y: True classes `(N,)`; None for a data set or loader.
        eps: The budget in pixel units. It is the first radius to be tried.
        crown: Whether to use CROWN in addition to interval bounds. It is much tighter on networks
            that were not trained with interval bounds, and much slower.
        indices: Numbers of the images in their data set `(N,)`.
        progress: True for a bar, or a function of the number of images done and of all images.

    Returns:
        The certificate, with `.radius` (of the bare network), `.mistake_radius` and
        `.rejection_radius`, one per image `(N,)`.

    Example:
        >>> import torch
        >>> from cpr_wrap import AcceptAll, SelectiveClassifier
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 2)).eval()
        >>> _ = net[1].load_state_dict({"weight": torch.tensor([[1.], [-1.]]),
        ...                             "bias": torch.tensor([-0.5, 0.5])})
        >>> model = SelectiveClassifier(net, AcceptAll())
        >>> found = certify(model, torch.tensor([[[[0.75]]]]), torch.tensor([0]), 0.125)
        >>> bool(found.radius >= 0.125)
        True
    """
    from rich.console import Console
    from rich.progress import Progress

    eps = check_number(eps, "eps")
    check_eval_mode(model)
    _check_model(model)
    source = source_of(x, y, indices)
    given = source.x if isinstance(source.x, Tensor) else torch.empty(0)
    place = (network_device(model.base, given.device), network_dtype(model.base) or given.dtype)
    images = source.block(range(len(source)), *place)
    x, y = images.x, images.y
    check_threat(threat("Linf"), eps, x)
    classes = num_classes(model, x)
    source.with_classes(classes)
    started = time.perf_counter()
    parts = list(zip(x.split(_AT_ONCE), y.split(_AT_ONCE), strict=True))
    mine: dict[int, Tensor] = {}
    bar = Progress(console=Console(stderr=True), disable=progress is not True or ranks.rank() != 0)
    task = bar.add_task("proving", total=len(x))
    with bar:
        for number in ranks.turns(len(parts)):
            mine[number] = _radii(model, *parts[number], eps, classes, crown)
            done = sum(found.shape[1] for found in mine.values())
            bar.update(task, completed=done)
            if callable(progress):
                progress(done, len(x))
    everyone = ranks.gather(mine)
    columns = torch.cat([everyone[number] for number in sorted(everyone)], dim=1)
    return Certificate(
        **dict(zip(COLUMNS, columns, strict=True)),
        eps=eps,
        index=source.index.cpu(),
        rule=model.rule.describe(),
        seconds=time.perf_counter() - started,
    )


def _check_model(model: SelectiveClassifier) -> None:
    """Refuse what cannot have a certificate, before any work."""
    if type(model.rule).certificate is RejectionRule.certificate:
        raise ValueError(
            f"no certificate: rule {model.rule.name!r} does not declare how its verdict follows "
            "from bounds on the network's outputs"
        )
    if network_dtype(model.base) in (torch.float16, torch.bfloat16):
        raise ValueError("no certificate: the network computes in half precision; use float32")


def _radii(
    model: SelectiveClassifier, x: Tensor, y: Tensor, eps: float, num_classes: int, crown: bool
) -> Tensor:
    """The three radii of some images `(3, M)`, float64 on the CPU."""
    answer = model(x)
    right, accepted = answer.predicted == y, answer.accepted.cpu()
    found = torch.full((3, len(x)), -math.inf, dtype=torch.float64)
    rows = right.cpu().nonzero().squeeze(1)
    proof = Proof(
        model.base,
        x[right],
        y[right],
        eps,
        num_classes=num_classes,
        most=eps + model.rule.reach + _BEYOND,
        crown=crown,
    )
    radii = model.rule.certificate(proof)
    if radii is None:
        raise ValueError(f"no certificate: rule {model.rule.describe()} declares none as it is set")
    # The clean image itself is known: nearer than any proven radius, there is only it.
    found[0, rows] = proof.radius() if proof.right is None else proof.right
    found[1, rows] = radii.mistake.clamp_min(0)
    found[2, rows] = torch.where(accepted[rows], radii.rejection.clamp_min(0), -math.inf)
    return found
