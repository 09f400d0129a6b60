"""Checks of a network with a few images, before any work."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap._checks import check_eval_mode, check_images

PROBABILITIES = (
    "the network's outputs are non-negative and sum to 1: they look like softmax probabilities. "
    "Return logits instead (leave out the last softmax); attacks and scores apply softmax "
    "themselves"
)


def probe_images(network: nn.Module, shape: tuple[int, ...], count: int = 2) -> Tensor:
    """Noise to try a network on, `(count, C, H, W)` in [0, 1], of its device and type."""
    like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    pixels = noise.uniform(noise.keys(0, torch.arange(count)), math.prod(shape))
    return pixels.view(count, *shape).to(device=like.device, dtype=like.dtype)


def check_network(
    network: nn.Module, x: Tensor, num_classes: int | None = None, extra_outputs: int = 0
) -> None:
    """Refuse a network that does not return one row of finite outputs per image.

    Warns if the outputs look like probabilities, because the cross-entropy would apply a second
    softmax.

    Args:
        network: The network, in eval mode.
        x: A few images `(N, C, H, W)` in [0, 1].
        num_classes: Number of classes, if known.
        extra_outputs: Number of columns that the rejection rule reads after the class logits.

    Example:
        >>> import torch
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
        >>> check_network(network, torch.rand(2, 1, 2, 2), num_classes=3)
    """
    check_eval_mode(network)
    check_images(x)
    try:
        with torch.no_grad():
            outputs = network(x)
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"the network does not take images of shape {tuple(x.shape)}: {reason}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(x):
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"expected a tensor of outputs ({len(x)}, classes) for {len(x)} images, got {got}"
        )
    least = 2 if num_classes is None else num_classes
    columns, wanted = outputs.shape[1], least + extra_outputs
    if columns < wanted or (columns > wanted and num_classes is not None):
        classes = f"at least {least}" if num_classes is None else least
        extra = f" and {extra_outputs} more for the rejection rule" if extra_outputs else ""
        raise ValueError(
            f"expected outputs for {classes} classes{extra}, got {columns}; is this the rule the "
            "network was made for?"
        )
    if not torch.isfinite(outputs).all():
        raise ValueError("expected finite outputs from the network, got NaN or infinity")
    if looks_like_probabilities(outputs):
        warnings.warn(PROBABILITIES, stacklevel=2)


def looks_like_probabilities(outputs: Tensor) -> bool:
    """Whether every row of outputs `(N, k)` is non-negative and sums to 1."""
    close = (outputs.sum(dim=1) - 1).abs() < 1e-3
    return bool((outputs >= 0).all() and close.all())
