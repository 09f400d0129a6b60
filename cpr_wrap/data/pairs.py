"""Data sets and loaders of (image, label), read into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cpr_wrap._checks import check_images


def read_pairs(data: Dataset[Any], numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Images `(B, ...)` and labels `(B,)` of some numbers."""
    images, labels = [], []
    for number in numbers:
        image, label = data[number]
        image = torch.as_tensor(image)
        try:
            check_images(image[None])
        except (TypeError, ValueError) as error:
            raise type(error)(f"image {number}: {error}") from error
        value = label.item() if hasattr(label, "item") else label
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(
                f"image {number}: expected a class number of at least 0, got {label!r}"
            )
        images.append(image)
        labels.append(value)
    return torch.stack(images), torch.tensor(labels)


def gather(data: Dataset[Any] | DataLoader[Any], y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """All images `(N, ...)` and labels `(N,)` of a data set or a loader; `y` must be None."""
    if y is not None:
        raise TypeError("y: expected None for a loader, which has its own labels")
    if isinstance(data, DataLoader):
        images, labels = zip(*((batch[0], batch[1]) for batch in data), strict=True)
        return torch.cat(images), torch.cat([torch.as_tensor(part) for part in labels])
    if not isinstance(data, Dataset) or not hasattr(data, "__len__"):
        raise TypeError(f"expected a data set with a length or a loader, got {type(data).__name__}")
    return read_pairs(data, range(len(data)))
