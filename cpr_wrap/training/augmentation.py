"""Random changes to training images, a function of each image's key alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cpr_wrap import noise
from cpr_wrap._registry import Registry

Augmentation = Callable[[Tensor, Tensor], Tensor]
"""From images `(N, C, H, W)` in [0, 1] and keys `(N,)` to images of the same shape and range."""

AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation")

_PAD = 4


@AUGMENTATIONS.register("none")
def unchanged(x: Tensor, keys: Tensor) -> Tensor:  # noqa: ARG001
    """Leave images as they are."""
    return x


@AUGMENTATIONS.register("crop-flip")
def crop_flip(x: Tensor, keys: Tensor) -> Tensor:
    """Pad by 4 black pixels, crop back to size anywhere, mirror every other image: CIFAR-10's."""
    height, width = x.shape[-2:]
    draws = noise.uniform(keys, 3)
    top, left = (draws[:, :2] * (2 * _PAD + 1)).long().unbind(dim=1)
    rows = top[:, None] + torch.arange(height, device=x.device)
    columns = left[:, None] + torch.arange(width, device=x.device)
    columns = torch.where(draws[:, 2:] < 0.5, columns.flip(1), columns)
    padded = F.pad(x, (_PAD, _PAD, _PAD, _PAD))
    image = torch.arange(len(x), device=x.device)
    # Advanced indices on both sides of a slice put their dimensions first: (N, H, W, C).
    cropped = padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2)


@AUGMENTATIONS.register("pad-or-contrast")
def pad_or_contrast(x: Tensor, keys: Tensor) -> Tensor:
    """Either shrink into a frame of edge pixels or change the contrast: SVHN's, no mirror images.

    The frame takes up to 20 % of the size on each side, before shrinking back; the contrast is
    multiplied by 0.7 to 1.3 around mid-grey.
    """
    draws = noise.uniform(keys, 6).to(x.dtype)
    pad = draws[:, :4] * 0.2
    left, right, top, bottom = pad.unbind(dim=1)
    zero = torch.zeros_like(left)
    # Output coordinates in [-1, 1] to those of the source, where the frame lies beyond -1 and 1.
    theta = torch.stack(
        [
            torch.stack([1 + left + right, zero, right - left], dim=1),
            torch.stack([zero, 1 + top + bottom, bottom - top], dim=1),
        ],
        dim=1,
    )
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    framed = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    contrast = 0.7 + 0.6 * draws[:, 4].view(-1, 1, 1, 1)
    contrasted = 0.5 + contrast * (x - 0.5)
    chosen = draws[:, 5].view(-1, 1, 1, 1) < 0.5
    return torch.where(chosen, framed, contrasted).clamp(0, 1)
