"""Do gradients reach the input? A gradient of exactly zero misleads attacks, and T(x) too.

Three causes are common: a clamp at the input (its gradient is zero on the bounds, where many pixels
of real images lie), saturated or dead activations, and outputs so large that the cross-entropy has
no gradient left in floating point.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cpr_wrap._checks import check_count, check_eval_mode, check_images
from cpr_wrap.objective import log_prob, margin
from cpr_wrap.selective import SelectiveClassifier

_NUDGE = 1e-3  # how far pixels are moved off their bounds: a quarter of one gray level
_MANY = 0.5  # a share from which on it is worth a warning
_RISE = 0.2  # a share of pixels whose gradient comes back once they are off their bound


@dataclass(frozen=True, kw_only=True)
class InputGradientReport:
    """How much of the gradient at the input is exactly zero.

    Shares are of pixels. Gradients are of the margin between the two largest logits, unless a name
    says cross-entropy.
    """

    num_images: int  #: How many images were checked.
    on_bound: float  #: Share of the pixels that lie exactly on 0 or 1.
    zero: float  #: Share of the pixels whose gradient is exactly zero.
    zero_on_bound: float  #: The same among the pixels on a bound; 0 if there are none.
    zero_off_bound: float  #: The same among the others; 0 if there are none.
    zero_after_nudge: float  #: As `zero_on_bound`, after all pixels moved toward 0.5 a little.
    zero_cross_entropy: float  #: As `zero`, for the cross-entropy, which T(x) ascends.
    flat_images: int  #: Images whose gradient is zero at every pixel.
    flat_images_cross_entropy: int  #: The same for the cross-entropy.
    nonfinite: float  #: Share of the pixels whose gradient is NaN or infinite.
    warning: str = ""  #: The likely causes; empty if there is no problem.


def input_gradient_report(
    model: nn.Module, x: Tensor, *, batch_size: int = 256
) -> InputGradientReport:
    """Check whether gradients reach the input, and warn if many of them are exactly zero.

    Args:
        model: A selective classifier, or a network from images in [0, 1] to logits.
        x: Images `(N, ...)` in [0, 1]; a few dozen are enough.
        batch_size: Images per batch.

    Returns:
        The report. Its warning, if any, is also issued as a Python warning.

    Example:
        >>> import torch
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
        >>> report = input_gradient_report(network, torch.rand(3, 1, 2, 2))
        >>> report.num_images, report.zero, report.warning
        (3, 0.0, '')
    """
    check_images(x)
    check_eval_mode(model)
    check_count(batch_size, "batch_size")
    parts = [_zeros(model, batch) for batch in x.split(batch_size)]
    lead, cross_entropy, nudged, nonfinite = (torch.cat(p) for p in zip(*parts, strict=True))
    pixels = x.detach().flatten(1)
    bound = (pixels <= 0) | (pixels >= 1)
    report = InputGradientReport(
        num_images=len(x),
        on_bound=_share(bound),
        zero=_share(lead),
        zero_on_bound=_share(lead[bound]),
        zero_off_bound=_share(lead[~bound]),
        zero_after_nudge=_share(nudged[bound]),
        zero_cross_entropy=_share(cross_entropy),
        flat_images=int(lead.all(dim=1).sum()),
        flat_images_cross_entropy=int(cross_entropy.all(dim=1).sum()),
        nonfinite=_share(nonfinite),
    )
    text = _explain(report)
    if text:
        warnings.warn(text, stacklevel=2)
    return replace(report, warning=text)


def _share(flags: Tensor) -> float:
    return float(flags.double().mean()) if flags.numel() else 0.0


def _zeros(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where gradients of margin, cross-entropy, nudged margin are 0; where no number; `(N, d)`."""
    outputs = model.logits if isinstance(model, SelectiveClassifier) else model
    with torch.inference_mode(False), torch.enable_grad():
        # Inference tensors cannot enter a graph; their clones can.
        point = (x.clone() if x.is_inference() else x).detach().requires_grad_()
        logits = outputs(point)
        predicted = logits.detach().argmax(dim=1)
        doubt = -log_prob(logits, predicted).sum()
        climbed = None
        if doubt.requires_grad:
            (climbed,) = torch.autograd.grad(doubt, point, retain_graph=True, allow_unused=True)
        if climbed is None:
            raise ValueError(
                "the network's outputs have no gradient at its input (a comparison like x > 0.5, "
                "detach() or no_grad() inside?), so that attacks cannot search; put something "
                "differentiable there"
            )
        (lead,) = torch.autograd.grad(margin(logits, predicted).sum(), point)
        moved = (point.detach() * (1 - 2 * _NUDGE) + _NUDGE).requires_grad_()
        (nudged,) = torch.autograd.grad(margin(outputs(moved), predicted).sum(), moved)
    here, there, moved_off = ((g == 0).flatten(1) for g in (lead, climbed, nudged))
    return here, there, moved_off, ~lead.isfinite().flatten(1)


def _explain(report: InputGradientReport) -> str:
    """Name the likely causes, from what distinguishes them."""
    causes = []
    if report.zero_on_bound - report.zero_after_nudge >= _RISE:
        causes.append(
            f"{report.zero_on_bound:.0%} of the pixels on a bound have no gradient, and "
            f"{report.zero_after_nudge:.0%} a little off it: the network seems to clamp its input "
            "(the gradient of clamp is zero on its bounds). Remove the clamp; images in [0, 1] "
            "do not need it"
        )
    elif report.zero >= _MANY:
        causes.append(
            f"{report.zero:.0%} of the pixels have no gradient, on a bound or not: activations "
            "near the input seem to be saturated or dead, or those pixels are not used"
        )
    if report.flat_images:
        causes.append(
            f"{report.flat_images} of {report.num_images} images have no gradient at all, not even "
            "of the outputs: something in the network is saturated, perhaps a softmax at its end"
        )
    if report.nonfinite:
        causes.append(
            f"{report.nonfinite:.1%} of the pixels have a gradient that is NaN or infinite: the "
            "network divides by zero or takes a root of zero in its backward; attacks treat such "
            "entries as 0"
        )
    lost = report.flat_images_cross_entropy - report.flat_images
    if lost > 0:
        causes.append(
            f"{lost} of {report.num_images} images have a gradient of the outputs but none of the "
            "cross-entropy: the outputs are so large that the softmax is saturated, and T(x) "
            "stays at x"
        )
    return ". ".join(causes)
