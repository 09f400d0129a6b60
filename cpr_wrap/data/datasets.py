"""The data sets we know by name, and where their images are looked for."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from cpr_wrap._checks import check_labels
from cpr_wrap._registry import Registry
from cpr_wrap.data.images import PAPER_TEST_IMAGES, PARTS, Bytes, ImageData, paper_split
from cpr_wrap.data.npz import npz_files, read_npz
from cpr_wrap.data.torchvision import Folder, read_torchvision

_BUNDLED_MNIST = Path(__file__).parent.parent / "bundled" / "mnist" / "test_subset.npz"


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set we know by name.

    Attributes:
        shape: `(C, H, W)` of an image.
        num_classes: How many classes it has.
        folder: Where torchvision keeps it.
        bundled: A part of its test set that comes with this package.
    """

    shape: tuple[int, int, int]
    num_classes: int
    folder: Folder
    bundled: Path | None = None


DATASETS: Registry[DataSet] = Registry("data set")

DATASETS.register("mnist")(
    DataSet(
        shape=(1, 28, 28),
        num_classes=10,
        folder=Folder(
            dataset="MNIST",
            train="MNIST/raw/train-images-idx3-ubyte",
            test="MNIST/raw/t10k-images-idx3-ubyte",
            url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        bundled=_BUNDLED_MNIST,
    )
)
DATASETS.register("cifar10")(
    DataSet(
        shape=(3, 32, 32),
        num_classes=10,
        folder=Folder(
            dataset="CIFAR10",
            train="cifar-10-batches-py/data_batch_1",
            test="cifar-10-batches-py/test_batch",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        ),
    )
)
DATASETS.register("svhn")(
    DataSet(
        shape=(3, 32, 32),
        num_classes=10,
        folder=Folder(
            dataset="SVHN",
            train="train_32x32.mat",
            test="test_32x32.mat",
            url="http://ufldl.stanford.edu/housenumbers/",
            split_names=True,
            channels_first=True,
        ),
    )
)


def load_data(
    name: str,
    part: str,
    data_dir: str | Path | None = None,
    download: bool = False,
    num: int | None = None,
) -> ImageData:
    """Load a part of a data set, as the paper divides it.

    Looks for `.npz` files, then for torchvision's folders, both in `data_dir`; then downloads if
    asked to; and at last takes the bundled test images (MNIST only).

    Args:
        name: "mnist", "svhn" or "cifar10".
        part: "train"; or, of the first 10,000 test images, "clean" (the first 9,000), "robust"
            (the first 1,000) or "validation" (the last 1,000). Fewer images are divided in the
            same proportions, which the note of the answer says.
        data_dir: Where to look; without it the environment variable CPR_WRAP_DATA, or `data`.
        download: Fetch through torchvision what is not there.
        num: Keep only the first `num` images of the part.

    Example:
        >>> data = load_data("mnist", "robust", num=3)
        >>> data.images.shape
        torch.Size([3, 1, 28, 28])
    """
    dataset = DATASETS[name]
    if part not in PARTS:
        raise ValueError(f"part: expected one of {', '.join(PARTS)}, got {part!r}")
    root = _root(data_dir, download)
    half = "train" if part == "train" else "test"
    stored = read_npz(root, name, half) or read_torchvision(root, dataset.folder, half, download)
    if stored is not None:
        return _from_stored(stored, name, part, num)
    if dataset.bundled is not None and half == "test":
        return _from_bundled(dataset.bundled, name, part, num, root)
    raise LookupError(_not_found(root, name, half))


def _root(data_dir: str | Path | None, download: bool) -> Path:
    """The one folder to look in. If it was asked for it must be there, or be about to be made."""
    asked = os.environ.get("CPR_WRAP_DATA") if data_dir is None else data_dir
    if asked is None:
        return Path("data")
    if not Path(asked).is_dir() and not download:
        who = "CPR_WRAP_DATA" if data_dir is None else "data_dir"
        raise ValueError(f"{who}: expected a folder with data sets, got {asked}, which is none")
    return Path(asked)


def _not_found(root: Path, name: str, half: str) -> str:
    whole, part = npz_files(root, name, half)
    folder = DATASETS[name].folder.file(root, half)
    only = (
        " The bundled MNIST images are test images." if (name, half) == ("mnist", "train") else ""
    )
    return (
        f"no {half} images of {name}: looked for {whole}, {part} and {folder}.{only} "
        "Name another folder with data_dir (--data-dir) or CPR_WRAP_DATA, "
        "or let torchvision fetch them with download=True (--download)"
    )


def _from_stored(stored: Bytes, name: str, part: str, num: int | None) -> ImageData:
    """Cut a part out of a whole half of a data set."""
    count = len(stored.labels)
    note = ""
    if part == "train":
        rows = range(count)
    else:
        rows = paper_split(part, count)
        if count < PAPER_TEST_IMAGES:
            note = (
                f"{stored.origin} has {count} test images of {name} where the paper's split needs "
                f"{PAPER_TEST_IMAGES}; divided in the same proportions, part {part!r} is "
                f"images {rows[0]} to {rows[-1]}"
            )
            warnings.warn(note, stacklevel=3)
    rows = _first(rows, num, name, part)
    numbers = np.arange(rows.start, rows.stop)
    return _convert(stored, slice(rows.start, rows.stop), numbers, name, part, note)


def _from_bundled(path: Path, name: str, part: str, num: int | None, root: Path) -> ImageData:
    """Take a part from the test images that come with this package."""
    with np.load(path, allow_pickle=False) as file:
        numbers = file["indices"].astype(np.int64)
        stored = Bytes(images=file["images"], labels=file["labels"], origin=str(path))
    # There are too few images for the clean part; the robust part stands in for it.
    wanted = paper_split("robust" if part == "clean" else part, PAPER_TEST_IMAGES)
    (found,) = np.nonzero(np.isin(numbers, wanted))
    note = (
        f"no test images of {name} in {root}: part {part!r} is test images {wanted[0]} to "
        f"{wanted[-1]}, from those that come with cpr-wrap"
    )
    if part == "clean":
        clean = paper_split(part, PAPER_TEST_IMAGES)
        note += f", where the paper takes images {clean[0]} to {clean[-1]}"
        warnings.warn(note, stacklevel=3)
    rows = _first(range(found[0], found[-1] + 1), num, name, part)
    chosen = slice(rows.start, rows.stop)
    return _convert(stored, chosen, numbers[chosen], name, part, note)


def _first(rows: range, num: int | None, name: str, part: str) -> range:
    if num is None:
        return rows
    if not 1 <= num <= len(rows):
        raise ValueError(
            f"num: expected 1 to {len(rows)}, the images in {name}'s part {part!r}, got {num}"
        )
    return rows[:num]


def _convert(
    stored: Bytes, chosen: slice, numbers: npt.NDArray[np.int64], name: str, part: str, note: str
) -> ImageData:
    """Make tensors of the chosen images, and see that they are images of this data set."""
    dataset = DATASETS[name]
    images, labels = stored.tensors(chosen)
    if images.shape[1:] != dataset.shape:
        raise ValueError(
            f"{stored.origin}: expected images of {name}, {dataset.shape} as (C, H, W), "
            f"got {tuple(images.shape[1:])}"
        )
    check_labels(labels, len(images), dataset.num_classes, name=stored.origin)
    return ImageData(
        images=images,
        labels=labels,
        indices=torch.from_numpy(numbers),
        name=name,
        part=part,
        num_classes=dataset.num_classes,
        note=note,
    )
