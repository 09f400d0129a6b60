"""Training images, whatever they come as, their order, and random changes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cpr_wrap import noise
from cpr_wrap._checks import check_images, check_labels
from cpr_wrap._files import digest
from cpr_wrap._registry import Registry
from cpr_wrap.data import ImageData

Images = ImageData | tuple[Tensor, Tensor] | Dataset[Any]
"""Images with labels: from `load_data` or `load_folder`, as `(x, y)`, or as a data set of both."""

SAMPLE = 32
"""How many images of a data set are read to tell it from another."""

Augmentation = Callable[[Tensor, Tensor], Tensor]
"""From images `(N, C, H, W)` in [0, 1] and keys `(N,)` to images of the same shape and range."""

AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation")

_ORDER = 101  # keeps the order of images apart from other uses of the same seed
_PAD = 4


class TrainingData:
    """Gives batches of images by their numbers."""

    def __init__(self, data: Images, num_classes: int | None = None, workers: int = 0) -> None:
        """Wrap images in [0, 1]; `num_classes` is for data that do not say it themselves."""
        self._workers = workers
        self.name: str | None = getattr(data, "name", None)
        if isinstance(data, ImageData):
            num_classes = num_classes or data.num_classes
            data = (data.images, data.labels)
        if isinstance(data, tuple):
            x, y = data
            check_images(x)
            check_labels(y, len(x), num_classes)
            num_classes = num_classes or int(y.max()) + 1
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            num_classes = num_classes or len(getattr(data, "classes", ()))
        else:
            raise TypeError(
                "data: expected what load_data gives, a tuple (images, labels), or a torch data "
                f"set with a length, got {type(data).__name__}"
            )
        if not num_classes:
            raise ValueError("num_classes: this data set does not say it; pass num_classes")
        self.num_classes = num_classes
        self._data: Any = data
        self._in_memory = isinstance(data, tuple)

    def __len__(self) -> int:
        return len(self._data[1] if self._in_memory else self._data)

    @cached_property
    def first(self) -> Tensor:
        """The first image, as a batch `(1, C, H, W)`, to try a network on."""
        return self.read(torch.arange(1))[0]

    def read(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Images `(N, C, H, W)` and labels `(N,)` of some numbers `(N,)`, read by this process."""
        return next(self.batches([numbers], workers=0))

    def identity(self) -> dict[str, Any]:
        """What tells these images from others: digests, None for what cannot be known.

        Tensors have a digest of everything. Images that are read one by one have a digest of some
        of them, which does not depend on how they are read, and of the list of files if they have
        one (`listing`, see `FolderImages`).
        """
        count = len(self)
        some = torch.arange(SAMPLE) * count // SAMPLE if count > SAMPLE else torch.arange(count)
        with torch.random.fork_rng(devices=[]):
            (x, y), (again, _) = self.batches([some, some], workers=0)
        list_files = getattr(self._data, "listing", None)
        return {
            "count": count,
            "all": digest(*self._data) if self._in_memory else None,
            # A data set that changes its images at random is known by its labels.
            "some": digest(x) if torch.equal(x, again) else None,
            "labels": digest(y.long()),
            "files": None if list_files is None else digest(list_files()),
        }

    def batches(
        self, numbers: Sequence[Tensor], workers: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Give images `(N, C, H, W)` and labels `(N,)` for each tensor of numbers `(N,)`."""
        if self._in_memory:
            x, y = self._data
            for chosen in numbers:
                yield x[chosen], y[chosen]
            return
        loader: DataLoader[Any] = DataLoader(
            self._data,
            batch_sampler=[chosen.tolist() for chosen in numbers],
            num_workers=self._workers if workers is None else workers,
            generator=torch.Generator(),  # its own, so that the caller's is not drawn from
        )
        for x, y in loader:
            check_images(x)
            check_labels(y, len(x), self.num_classes)
            yield x, y


def epoch_batches(count: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """The numbers of the images of each batch of an epoch, by seed and epoch alone.

    The last batch holds what is left over, but is never a single image: batch norm has nothing to
    normalize one image by, so it joins the batch before.
    """
    order = noise.keys(seed, _ORDER, epoch, torch.arange(count)).argsort()
    begins = range(batch_size, count - (batch_size > 1), batch_size)
    return list(order.tensor_split(list(begins)))


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
    multiplied by 0.7 to 1.3 around mid-gray.
    """
    draws = noise.uniform(keys, 6).to(x.dtype)
    left, right, top, bottom = (draws[:, :4] * 0.2).unbind(dim=1)
    zero = torch.zeros_like(left)
    # Output coordinates in [-1, 1] to those of the source, where the frame lies beyond -1 and 1.
    across = torch.stack([1 + left + right, zero, right - left], dim=1)
    down = torch.stack([zero, 1 + top + bottom, bottom - top], dim=1)
    theta = torch.stack([across, down], dim=1)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    framed = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    contrast = 0.7 + 0.6 * draws[:, 4].view(-1, 1, 1, 1)
    contrasted = 0.5 + contrast * (x - 0.5)
    chosen = draws[:, 5].view(-1, 1, 1, 1) < 0.5
    return torch.where(chosen, framed, contrasted).clamp(0, 1)
