"""The images of an evaluation, given as tensors or as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpr_wrap._checks import check_images, check_labels
from cpr_wrap.evaluation.blocks import Images


@dataclass(frozen=True)
class Source:
    """Images to be evaluated, given as tensors or as a data set, read block by block.

    Attributes:
        x: Images `(N, ...)`, or a data set of (image, label).
        y: Labels `(N,)` where `x` is a tensor.
        index: Numbers of the images `(N,)`.
    """

    x: Tensor | Dataset[Any]
    y: Tensor | None
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def block(self, rows: range, device: torch.device, dtype: torch.dtype) -> Images:
        """Read some images, check them and move them to the model."""
        if isinstance(self.x, Tensor):
            assert self.y is not None
            x, y = self.x[rows.start : rows.stop], self.y[rows.start : rows.stop]
        else:
            pairs = [self.x[int(self.index[row])] for row in rows]
            x = torch.stack([torch.as_tensor(image) for image, _ in pairs])
            y = torch.tensor([int(label) for _, label in pairs])
            check_images(x)
        index = self.index[rows.start : rows.stop]
        return Images(x=x.to(device, dtype), y=y.to(device).long(), index=index.to(device).long())


def source_of(x: Tensor | Dataset[Any], y: Tensor | None, indices: Sequence[int] | None) -> Source:
    """Check what the caller gave and number it."""
    if isinstance(x, Tensor):
        if y is None:
            raise TypeError("y: expected labels beside a tensor of images, got None")
        check_images(x)
        check_labels(y, len(x))
        count = len(x)
    else:
        if y is not None:
            raise TypeError("y: expected None beside a data set, which brings its own labels")
        if not hasattr(x, "__len__"):
            raise TypeError(f"x: expected a tensor or a data set with a length, got {type(x)}")
        count = len(x) if indices is None else len(indices)
    index = torch.arange(count) if indices is None else torch.as_tensor(indices)
    if len(index) != count or count == 0:
        raise ValueError(f"indices: expected one for each of {count} images, got {len(index)}")
    return Source(x, y, index)
