"""Training images, whatever they come as: tensors, our own data, or any torch data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cpr_wrap import noise
from cpr_wrap._checks import check_images, check_labels
from cpr_wrap._files import digest
from cpr_wrap.data import ImageData

Images = ImageData | tuple[Tensor, Tensor] | Dataset[Any]
"""Images with labels: from `load_data` or `load_folder`, as `(x, y)`, or as a data set of both."""

SAMPLE = 32
"""How many images of a data set are read to tell it from another."""

_ORDER = 101  # keeps the order of images apart from other uses of the same seed


class TrainingData:
    """Gives batches of images by their numbers.

    Attributes:
        name: What the images are called, if they say so.
        num_classes: k.
    """

    def __init__(self, data: Images, num_classes: int | None = None, workers: int = 0) -> None:
        """Wrap images.

        Args:
            data: Images in [0, 1] with labels.
            num_classes: k, where the data do not say it themselves.
            workers: Processes that load the images of a data set.
        """
        self._tensors: tuple[Tensor, Tensor] | None = None
        self._dataset: Any = data
        self._workers = workers
        self.name: str | None = getattr(data, "name", None)
        if isinstance(data, ImageData):
            self._tensors = (data.images, data.labels)
            num_classes = num_classes or data.num_classes
        elif isinstance(data, tuple):
            self._tensors = x, y = data
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

    def __len__(self) -> int:
        return len(self._dataset if self._tensors is None else self._tensors[1])

    def first(self) -> Tensor:
        """The first image, as a batch `(1, C, H, W)`, to try a network on."""
        return next(self.batches([torch.zeros(1, dtype=torch.int64)]))[0]

    def all(self) -> tuple[Tensor, Tensor]:
        """All images `(N, C, H, W)` and labels `(N,)`."""
        return next(self.batches([torch.arange(len(self))]))

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
        list_files = getattr(self._dataset, "listing", None)
        return {
            "count": count,
            "all": None if self._tensors is None else digest(*self._tensors),
            # A data set that changes its images at random is known by its labels.
            "some": digest(x) if torch.equal(x, again) else None,
            "labels": digest(y.long()),
            "files": None if list_files is None else digest(list_files()),
        }

    def batches(
        self, numbers: Sequence[Tensor], workers: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Give images `(N, C, H, W)` and labels `(N,)` for each tensor of numbers `(N,)`."""
        if self._tensors is not None:
            x, y = self._tensors
            for chosen in numbers:
                yield x[chosen], y[chosen]
            return
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=[chosen.tolist() for chosen in numbers],
            num_workers=self._workers if workers is None else workers,
            generator=torch.Generator(),  # its own, so that the caller's is not drawn from
        )
        for x, y in loader:
            check_images(x)
            check_labels(y, len(x), self.num_classes)
            yield x, y


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Batches that `count` images make, see `epoch_batches`."""
    whole, rest = divmod(count, batch_size)
    return max(whole + (rest > 1), 1)


def epoch_batches(count: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """The numbers of the images of each batch of an epoch.

    The last batch holds what is left over, but is never a single image: batch norm has nothing to
    normalise one image by, so it joins the batch before.
    """
    begins = [step * batch_size for step in range(1, steps_per_epoch(count, batch_size))]
    return list(epoch_order(count, seed, epoch).tensor_split(begins))


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """A permutation of `range(count)` that depends on seed and epoch alone."""
    return noise.keys(seed, _ORDER, epoch, torch.arange(count)).argsort()
