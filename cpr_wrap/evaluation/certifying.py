"""`certify`: what bounds prove about a selective classifier around images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cpr_wrap._checks import check_eval_mode, check_images, check_labels, check_number
from cpr_wrap.bounds import Proof
from cpr_wrap.data.images import gather
from cpr_wrap.engine import ranks
from cpr_wrap.metrics.certificate import Certificate
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
        indices: Numbers of the images in their data set.
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
    eps = check_number(eps, "eps")
    check_eval_mode(model)
    if not isinstance(x, Tensor):
        x, y = gather(x, y)
    check_images(x)
    if y is None:
        raise TypeError("y: expected labels for a tensor of images, got None")
    _check_model(model)
    device, dtype = network_device(model.base, x.device), network_dtype(model.base)
    x = x.to(device, dtype or x.dtype)
    y = y.to(device)
    with torch.no_grad():
        num_classes = model.logits(x[:1]).shape[1]
    check_labels(y, len(x), num_classes)
    started = time.perf_counter()
    starts = range(0, len(x), _AT_ONCE)
    mine: dict[int, Tensor] = {}
    with _shown(progress, len(x)) as tell:
        for number in ranks.turns(len(starts)):
            rows = slice(starts[number], starts[number] + _AT_ONCE)
            mine[number] = _radii(model, x[rows], y[rows], eps, num_classes, crown)
            tell(len(x[rows]))
    everyone = ranks.gather(mine)
    columns = torch.cat([everyone[number] for number in sorted(everyone)], dim=1)
    index = torch.arange(len(x)) if indices is None else torch.as_tensor(indices)
    return Certificate(
        radius=columns[0],
        mistake_radius=columns[1],
        rejection_radius=columns[2],
        eps=eps,
        index=index.long().cpu(),
        rule=model.rule.describe(),
        seconds=time.perf_counter() - started,
    )


def _check_model(model: SelectiveClassifier) -> None:
    """Refuse what cannot have a certificate, before any work."""
    from cpr_wrap.rule import RejectionRule

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
    right = (answer.predicted == y).cpu()
    accepted = answer.accepted.cpu()
    found = torch.full((3, len(x)), -math.inf, dtype=torch.float64)
    rows = right.nonzero().squeeze(1)
    proof = Proof(
        model.base,
        x[rows.to(x.device)],
        y[rows.to(x.device)],
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


class _shown:
    """Tells how many images are done, to a function or as a bar on standard error."""

    def __init__(self, wish: bool | Callable[[int, int], None] | None, count: int) -> None:
        self.count, self.done, self.bar = count, 0, None
        self.wish = wish if callable(wish) else None
        if wish is True:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), disable=ranks.rank() != 0)
            self.task = self.bar.add_task("proving", total=count)

    def __enter__(self) -> Callable[[int], None]:
        if self.bar is not None:
            self.bar.start()
        return self.tell

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def tell(self, more: int) -> None:
        """Some more images are done."""
        self.done += more
        if self.bar is not None:
            self.bar.update(self.task, advance=more)
        if self.wish is not None:
            self.wish(self.done, self.count)
