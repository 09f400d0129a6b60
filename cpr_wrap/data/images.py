"""Images with their labels, which of them are wanted, and the paper's way to divide a test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cpr_wrap._checks import check_images, check_labels

# The paper judges on this many test images, whatever the length of the test set.
PAPER_TEST_IMAGES = 10_000
PARTS = ("train", "test", "clean", "robust", "validation")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """Some images of a data set."""

    images: Tensor  #: Pixels `(N, C, H, W)`, float32 in [0, 1].
    labels: Tensor  #: Classes `(N,)`, int64.
    #: Each image's number in its data set `(N,)`, int64; random starts of attacks depend on it.
    indices: Tensor
    name: str  #: The data set.
    part: str  #: Which part of it.
    num_classes: int  #: How many classes the data set has.
    note: str = ""  #: A remark on the choice of images for readers of results; may be empty.

    def __post_init__(self) -> None:
        check_images(self.images, self.name)
        check_labels(self.labels, len(self.images), self.num_classes, self.name)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which images are asked for: `num` from number `start` on, or all those of `indices`."""

    num: int | None = None
    start: int | None = None
    indices: Sequence[int] | Tensor | None = None

    def rows(self, numbers: Numbers, what: str, *, spread: bool = False) -> Numbers:
        """Places of the images that are wanted among those with rising `numbers` `(N,)`.

        With `spread`, `num` alone spreads them over all images.
        """
        if self.indices is not None:
            return self._chosen(numbers, what)
        rows = np.arange(len(numbers))
        if self.start is not None:
            rows = rows[numbers >= self.start]
            if self.start < 0 or not len(rows):
                raise ValueError(
                    f"start: expected 0 to {numbers[-1]}, the numbers in {what}, got {self.start}"
                )
        if self.num is not None and not 1 <= self.num <= len(rows):
            raise ValueError(
                f"num: expected 1 to {len(rows)}, the images in {what}, got {self.num}"
            )
        if self.num is not None and self.start is None and spread:
            return np.arange(self.num) * len(rows) // self.num
        return rows[: self.num]

    def _chosen(self, numbers: Numbers, what: str) -> Numbers:
        if self.num is not None or self.start is not None:
            raise ValueError("indices: expected without num and start, which also choose images")
        chosen = np.asarray(self.indices)
        if chosen.ndim != 1 or not len(chosen) or chosen.dtype.kind not in "iu":
            raise ValueError(
                f"indices: expected a list of whole numbers, got {chosen.dtype} {chosen.shape}"
            )
        if len(np.unique(chosen)) != len(chosen):
            raise ValueError("indices: expected each number once, got duplicates")
        rows = np.searchsorted(numbers, chosen).clip(max=len(numbers) - 1)
        wrong = chosen[numbers[rows] != chosen]
        if len(wrong):
            raise ValueError(
                f"indices: expected numbers of images in {what}, which are {_ranges(numbers)}, "
                f"got {', '.join(map(str, wrong[:5]))}"
            )
        return rows


def _ranges(numbers: Numbers) -> str:
    """Rising numbers in words: `0 to 999 and 9000 to 9999`."""
    gaps = np.nonzero(np.diff(numbers) > 1)[0] + 1
    parts = [f"{part[0]} to {part[-1]}" for part in np.split(numbers, gaps)[:4]]
    return " and ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Images as they are stored, of which only those that are wanted become tensors."""

    images: npt.NDArray[Any]
    """Gray `(N, H, W)`, color `(N, H, W, C)` or `(N, C, H, W)`; bytes, or floats in [0, 1]."""
    labels: npt.NDArray[Any]
    origin: str
    num_classes: int | None = None
    numbers: Numbers | None = None
    """The number of each image in its data set `(N,)`, rising; its place if None."""

    def __post_init__(self) -> None:
        shape, dtype = self.images.shape, self.images.dtype
        if (dtype != np.uint8 and dtype.kind != "f") or len(shape) not in (3, 4) or 0 in shape:
            raise ValueError(
                f"{self.origin}: expected images of type uint8, or floats in [0, 1], and of shape "
                f"(N, H, W) or (N, H, W, C) or (N, C, H, W), got {dtype} {shape}"
            )
        if len(shape) == 4 and (shape[1] in (1, 3)) == (shape[3] in (1, 3)):
            raise ValueError(
                f"{self.origin}: expected 1 or 3 channels, first or last, to tell (N, H, W, C) "
                f"from (N, C, H, W), got {shape}"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype.kind not in "iu":
            raise ValueError(
                f"{self.origin}: expected one integer label for each of the {len(self.images)} "
                f"images, got {self.labels.dtype} {self.labels.shape}"
            )

    @property
    def pixels(self) -> npt.NDArray[Any]:
        """The images as `(N, C, H, W)`, without a copy."""
        if self.images.ndim == 3:
            return self.images[:, None]
        return np.moveaxis(self.images, 3, 1) if self.images.shape[3] in (1, 3) else self.images

    def take(
        self,
        wanted: Wanted,
        *,
        what: str | None = None,
        among: range | None = None,
        **facts: str,
    ) -> ImageData:
        """The images that are wanted of those numbered in `among`; `facts`: name, part, note."""
        numbers = np.arange(len(self.labels)) if self.numbers is None else self.numbers
        places = np.arange(len(numbers))
        if among is not None:
            places = places[(among.start <= numbers) & (numbers < among.stop)]
        rows = places[wanted.rows(numbers[places], what or self.origin)]
        images = np.ascontiguousarray(self.pixels[rows])
        pixels = torch.from_numpy(images.astype(images.dtype.newbyteorder("="), copy=False))
        pixels = pixels.float().div_(255 if pixels.dtype == torch.uint8 else 1)
        labels = torch.from_numpy(self.labels[rows].astype(np.int64))
        return ImageData(
            images=pixels,
            labels=labels,
            indices=torch.from_numpy(numbers[rows]),
            num_classes=self.num_classes or int(self.labels.max()) + 1,
            **facts,
        )


def collect(
    data: Dataset[Any], rows: Numbers, origin: str, num_classes: int | None = None, **facts: str
) -> ImageData:
    """Some images of a data set of pixels `(C, H, W)` and labels; `facts`: name and part."""
    images, labels = read_pairs(data, rows.tolist(), f"{origin}: image")
    return ImageData(
        images=images.float(),
        labels=labels,
        indices=torch.from_numpy(rows),
        num_classes=num_classes or int(labels.max()) + 1,
        **facts,
    )


def read_pairs(
    data: Dataset[Any], numbers: Sequence[int], what: str = "image"
) -> tuple[Tensor, Tensor]:
    """Images `(B, ...)` and labels `(B,)` of some numbers; `what` they are, for messages."""
    pairs = [data[number] for number in numbers]
    try:
        images = torch.stack([torch.as_tensor(image) for image, _ in pairs])
        # Some data sets give each label as an array of one number.
        labels = torch.stack([torch.as_tensor(label).squeeze() for _, label in pairs])
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"{what}s: expected tensors (C, H, W) of one size with labels ({error}); pass a "
            "transform, e.g. the model's own (ZooModel.transform) or torchvision's ToTensor"
        ) from error
    for number, image, label in zip(numbers, images, labels, strict=True):
        check_images(image[None], f"{what} {number}")
        check_labels(label[None], 1, name=f"{what} {number}")
    return images, labels.long()


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


def per_class(images: Tensor, labels: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The first `most` images of every class, class by class."""
    classes = labels.unique().tolist()
    rows = torch.cat([(labels == label).nonzero().flatten()[:most] for label in classes])
    return images[rows], labels[rows]


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
    rest = count - tenth
    return {"clean": range(rest), "robust": range(tenth), "validation": range(rest, count)}[part]
