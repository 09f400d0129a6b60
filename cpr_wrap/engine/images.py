"""The images of an evaluation, given as tensors, as a data set or as a loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from cpr_wrap._checks import check_images, check_labels
from cpr_wrap.data.images import gather, read_pairs

_READ_AGAIN = 8  # images that are read twice


@dataclass(frozen=True, kw_only=True)
class Images:
    """The images of one block: pixels `(B, ...)`, labels `(B,)`, data-set numbers `(B,)`."""

    x: Tensor
    y: Tensor
    index: Tensor

    def to(self, device: torch.device) -> Images:
        """The same on a device."""
        return Images(x=self.x.to(device), y=self.y.to(device), index=self.index.to(device))


@dataclass(frozen=True)
class ImageSource:
    """Images to be evaluated, read block by block."""

    x: Tensor | Dataset[Any]  # images (N, ...), or a data set of (image, label)
    y: Tensor | None  # labels (N,) where x is a tensor
    index: Tensor  # numbers of the images (N,)
    num_classes: int | None = None  # once it is known; labels from there on are refused

    def __len__(self) -> int:
        return len(self.index)

    def block(self, rows: range, device: torch.device, dtype: torch.dtype) -> Images:
        """Read some images, check them and move them to the model."""
        index = self.index[rows.start : rows.stop]
        if isinstance(self.x, Tensor):
            assert self.y is not None
            x, y = self.x[rows.start : rows.stop], self.y[rows.start : rows.stop]
        else:
            x, y = read_pairs(self.x, index.tolist())
        self._check(y, index)
        return Images(
            x=x.detach().to(device, dtype), y=y.to(device).long(), index=index.to(device).long()
        )

    def with_classes(self, num_classes: int) -> ImageSource:
        """The same, with labels that fit k classes; those of a data set are checked when read."""
        source = replace(self, num_classes=num_classes)
        if self.y is not None:
            source._check(self.y, self.index)
        return source

    def _check(self, y: Tensor, index: Tensor) -> None:
        k = self.num_classes
        if k is not None and int(y.max()) >= k:
            row = int(y.argmax())
            raise ValueError(
                f"image {int(index[row])}: expected a label from 0 to {k - 1}, got {int(y[row])}"
            )


def source_of(
    x: Tensor | Dataset[Any] | DataLoader[Any],
    y: Tensor | None,
    indices: Sequence[int] | Tensor | None,
) -> ImageSource:
    """Check what the caller gave and number it."""
    if isinstance(x, DataLoader):
        if isinstance(x.sampler, RandomSampler):
            raise ValueError(
                "x: expected a loader with shuffle=False, so that images have fixed numbers"
            )
        x, y = gather(x, y)
    if isinstance(x, Tensor):
        if y is None:
            raise TypeError("y: expected labels for a tensor of images, got None")
        check_images(x)
        check_labels(y, len(x))
        count = len(x)
    else:
        pairs = hasattr(x, "__len__") and hasattr(x, "__getitem__") and not hasattr(x, "__array__")
        if not pairs:
            raise TypeError(
                "x: expected a tensor of images, a data set with a length, or a loader, got "
                f"{type(x).__name__}; convert an array with torch.from_numpy"
            )
        if y is not None:
            raise TypeError("y: expected None for a data set, which has its own labels")
        count = len(x) if indices is None else len(indices)  # type: ignore[arg-type]
    index = torch.arange(count) if indices is None else _numbers(indices)
    if len(index) != count or count == 0:
        raise ValueError(f"indices: expected one for each of {count} images, got {len(index)}")
    if not isinstance(x, Tensor):
        # A coin's flip of one image would come out the same half of the time.
        for number in index[:_READ_AGAIN].tolist():
            first, again = (read_pairs(x, [number])[0] for _ in range(2))
            if not torch.equal(first, again):
                raise ValueError(
                    f"x: image {number} differs when it is read again; remove random "
                    "transforms from the data set"
                )
    return ImageSource(x, y, index)


def _numbers(indices: Sequence[int] | Tensor) -> Tensor:
    """Image numbers `(N,)`, each at least 0 and none twice."""
    try:
        index = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"indices: expected a list of whole numbers, got {indices!r:.60}"
        ) from error
    if index.dim() != 1 or index.dtype == torch.bool or index.is_floating_point():
        raise ValueError(
            "indices: expected a list of whole numbers, one per image, got "
            f"{index.dtype} of shape {tuple(index.shape)}"
        )
    if len(index) and int(index.min()) < 0:
        raise ValueError(f"indices: expected numbers of at least 0, got {int(index.min())}")
    if len(index.unique()) != len(index):
        raise ValueError("indices: expected every image once, got duplicates")
    return index.long()


def split(count: int, size: int) -> Iterator[range]:
    """Positions of the blocks of a data set: fixed by the data set and the size alone."""
    for first in range(0, count, size):
        yield range(first, min(first + size, count))
