"""A data set: bright squares on gray, one class per corner."""

from __future__ import annotations

import torch

from cpr_wrap.data import ImageData

_COUNTS = {"train": 40, "validation": 40, "robust": 20, "clean": 20}


def squares(part: str) -> ImageData:
    """Images of a part of the data set."""
    count = _COUNTS[part]
    labels = torch.arange(count) % 4
    images = torch.full((count, 1, 28, 28), 0.3)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 14 * (label // 2), 14 * (label % 2)
        image[:, row : row + 14, column : column + 14] = 0.9
    return ImageData(
        images=images,
        labels=labels,
        indices=torch.arange(count),
        name="squares",
        part=part,
        num_classes=4,
    )
