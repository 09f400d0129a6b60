"""Images with their labels, and the paper's way to divide a test set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# The paper judges on this many test images, whatever the length of the test set.
PAPER_TEST_IMAGES = 10_000
PARTS = ("train", "clean", "robust", "validation")


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """Some images of a data set.

    Attributes:
        images: Pixels `(N, C, H, W)`, float32 in [0, 1].
        labels: Classes `(N,)`, int64.
        indices: Each image's number in the file it comes from `(N,)`, int64; the random starts of
            attacks depend on it.
        name: The data set.
        part: Which part of it.
        num_classes: How many classes the data set has.
        note: What a reader of results must know about this choice of images; empty if nothing.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    name: str
    part: str
    num_classes: int
    note: str = ""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Images as they are stored, of which only the asked-for part becomes floats.

    Attributes:
        images: Grey `(N, H, W)` or colour `(N, H, W, C)`, uint8.
        labels: Classes `(N,)`.
        origin: The file or folder they come from, for messages.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.integer]
    origin: str

    def tensors(self, chosen: slice) -> tuple[Tensor, Tensor]:
        """Pixels `(M, C, H, W)` in [0, 1] and labels `(M,)` of a stretch of images."""
        pixels = torch.from_numpy(np.ascontiguousarray(self.images[chosen]))
        pixels = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
        labels = torch.from_numpy(self.labels[chosen].astype(np.int64))
        return pixels.contiguous().float().div_(255), labels


def paper_split(part: str, count: int) -> range:
    """Which of `count` test images make up a part.

    Of 10,000 images the first 9,000 are for clean metrics, the first 1,000 of these for
    robustness, and the last 1,000 for validation. Fewer are divided in the same proportions.

    Example:
        >>> paper_split("validation", 10_000), paper_split("clean", 949)
        (range(9000, 10000), range(0, 855))
    """
    count = min(count, PAPER_TEST_IMAGES)
    if count < 2:
        raise ValueError(
            f"expected at least 2 test images, to have one outside the validation part, got {count}"
        )
    tenth = max(1, count // 10)
    parts = {
        "clean": range(count - tenth),
        "robust": range(tenth),
        "validation": range(count - tenth, count),
    }
    return parts[part]
