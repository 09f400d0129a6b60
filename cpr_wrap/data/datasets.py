"""The data sets with a name, and where their images are searched."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cpr_wrap._files import digest
from cpr_wrap._registry import Registry, unknown
from cpr_wrap.data.folder import ClassMap, FolderImages, Transform, some_of
from cpr_wrap.data.images import PAPER_TEST_IMAGES, PARTS, ImageData, Stored, Wanted, paper_split
from cpr_wrap.data.images import per_class as first_of_each
from cpr_wrap.data.own import load_address, load_npz, npz_files, read_npz, take
from cpr_wrap.data.torchvision import DataSet, read_torchvision

_BUNDLED = Path(__file__).parent.parent / "bundled" / "mnist"

DATASETS: Registry[DataSet] = Registry("data set")
LOADERS: Registry[Callable[[str], ImageData]] = Registry("data set", "cpr_wrap.data")
"""Data sets of other packages: functions from the name of a part to its images."""

DATASETS.register("mnist")(
    DataSet(
        shape=(1, 28, 28),
        num_classes=10,
        source="MNIST",
        train="MNIST/raw/train-images-idx3-ubyte",
        test="MNIST/raw/t10k-images-idx3-ubyte",
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        bundled=_BUNDLED / "test_subset.npz",
    )
)
DATASETS.register("cifar10")(
    DataSet(
        shape=(3, 32, 32),
        num_classes=10,
        source="CIFAR10",
        train="cifar-10-batches-py/data_batch_1",
        test="cifar-10-batches-py/test_batch",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    )
)
DATASETS.register("svhn")(
    DataSet(
        shape=(3, 32, 32),
        num_classes=10,
        source="SVHN",
        train="train_32x32.mat",
        test="test_32x32.mat",
        url="http://ufldl.stanford.edu/housenumbers/",
        split_names=True,
    )
)


def load_data(
    name: str | Path,
    part: str = "robust",
    data_dir: str | Path | None = None,
    download: bool = False,
    num: int | None = None,
    *,
    start: int | None = None,
    indices: Sequence[int] | Tensor | None = None,
    transform: Transform | None = None,
    channels: int | None = None,
    class_map: ClassMap | None = None,
) -> ImageData:
    """Load images with labels: a part of a known data set, or your own images.

    A known data set is searched in `data_dir`, first as `.npz` files, then in torchvision's
    folders. With `download`, it is fetched if missing. Otherwise the bundled test images are used
    (MNIST only).

    Args:
        name: "mnist", "svhn" or "cifar10"; or your own images: a file `images.npz`, a folder with
            one subfolder per class, or the address `module:function` of a function that returns
            images and labels, or a data set.
        part: For a known data set: "train", "test" (all test images), or one of the paper's parts
            of the first 10,000 test images: "clean" (the first 9,000), "robust" (the first 1,000)
            or "validation" (the last 1,000). Smaller test sets are divided in the same proportions,
            and the result has a note about it.
        data_dir: Where to search; by default the environment variable CPR_WRAP_DATA, or `data`.
        download: Fetch missing data through torchvision.
        num: Keep at most this many images: the first ones, or for a folder evenly spread ones.
        start: Number of the first image to use.
        indices: Use the images with these numbers, in this order. Like `start`, they count from the
            beginning of the training or test set, the file or the folder.
        transform: For a folder, see `FolderImages`.
        channels: For a folder, see `FolderImages`.
        class_map: For a folder, see `FolderImages`.

    Example:
        >>> load_data("mnist", "robust", num=3).images.shape
        torch.Size([3, 1, 28, 28])
        >>> load_data("mnist", "test", indices=[9_007, 5]).labels
        tensor([3, 1])
    """
    wanted = Wanted(num=num, start=start, indices=indices)
    if class_map is not None and (name in DATASETS or not Path(name).is_dir()):
        raise ValueError(f"class_map: expected only with a folder of images, got {name}")
    if name not in DATASETS:
        path = Path(name)
        if path.suffix == ".npz":
            return load_npz(path, part, wanted)
        if path.is_dir():
            folder = FolderImages(path, transform, channels=channels, class_map=class_map)
            return some_of(folder, wanted)
        if ":" in str(name):
            return load_address(str(name), wanted)
        if str(name) in LOADERS:
            return take(LOADERS[str(name)](part), wanted, str(name))
        raise unknown("data set", str(name), [*DATASETS, *LOADERS])
    name = str(name)
    dataset = DATASETS[name]
    if part not in PARTS:
        raise ValueError(f"part: expected one of {', '.join(PARTS)}, got {part!r}")
    root = _root(data_dir, download)
    half = "train" if part == "train" else "test"
    stored = read_npz(root, name, half) or read_torchvision(root, dataset, half, download)
    note = ""
    if stored is None and dataset.bundled is not None and half == "test":
        stored = _read_bundled(dataset.bundled)
        note = (
            f"no test images of {name} in {root}: these are from the {len(stored.labels)} that "
            "come with cpr-wrap"
        )
    if stored is None:
        raise LookupError(_not_found(root, name, half))
    return _part_of(stored, name, part, wanted, note)


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
    file = DATASETS[name].file(root, half)
    only = " The bundled images are test images." * (DATASETS[name].bundled is not None)
    return (
        f"no {half} images of {name}: looked for {whole}, {part} and {file}.{only} "
        "Name another folder with data_dir (--data-dir) or CPR_WRAP_DATA, "
        "or let torchvision fetch them with download=True (--download)"
    )


def _read_bundled(path: Path) -> Stored:
    """The test images that come with this package."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in ("images", "labels")}
        return Stored(**arrays, origin=str(path), numbers=file["indices"].astype(np.int64))


def _part_of(stored: Stored, name: str, part: str, wanted: Wanted, note: str) -> ImageData:
    """Take a part of a half of a data set; `note` says where it is from, if it is not whole."""
    shape, expected = stored.pixels.shape[1:], DATASETS[name].shape
    if shape != expected:
        raise ValueError(
            f"{stored.origin}: expected images of {name}, {expected} as (C, H, W), got {shape}"
        )
    among = None
    if part not in ("train", "test"):
        count = PAPER_TEST_IMAGES if note else len(stored.labels)
        among = paper_split(part, count)
        if count < PAPER_TEST_IMAGES:
            note = (
                f"{stored.origin} has {count} test images of {name} where the paper's split needs "
                f"{PAPER_TEST_IMAGES}; divided in the same proportions, part {part!r} is "
                f"images {among[0]} to {among[-1]}"
            )
        elif note and part == "clean":
            note += f", where the paper takes images {among[0]} to {among[-1]}"
        elif note:
            note += f", part {part!r} is images {among[0]} to {among[-1]}"
        if count < PAPER_TEST_IMAGES or (note and part == "clean"):
            warnings.warn(note, stacklevel=3)
    stored = replace(stored, num_classes=DATASETS[name].num_classes)
    what = f"{name}'s part {part!r}"
    return stored.take(wanted, what=what, among=among, name=name, part=part, note=note)


class DonorPool(NamedTuple):
    """Training images, the same number per class."""

    images: Tensor  #: Pixels `(N, C, H, W)` in [0, 1], ordered by class.
    labels: Tensor  #: Classes `(N,)`.
    digest: str  #: A digest of both.


def donor_pool(
    name: str, per_class: int = 20, data_dir: str | Path | None = None
) -> DonorPool | None:
    """The first training images of each class of a known data set.

    Args:
        name: "mnist", whose donors come with this package, "svhn" or "cifar10".
        per_class: Images per class, or as many as there are: 500 for MNIST.
        data_dir: Folder of the other data sets, see `load_data`.

    Returns:
        The donors; None if there are no training images.

    Example:
        >>> pool = donor_pool("mnist", per_class=2)
        >>> pool.images.shape
        torch.Size([20, 1, 28, 28])
    """
    try:
        if name == "mnist":
            data = load_npz(_BUNDLED / "train_pool.npz", "train", Wanted())
        else:
            data = load_data(name, "train", data_dir)
    except LookupError:
        return None
    if per_class < 1:
        raise ValueError(f"per_class: expected at least 1, got {per_class}")
    images, labels = first_of_each(data.images, data.labels, per_class)
    return DonorPool(images, labels, digest(images, labels))
