"""Images in NumPy's `.npz` files, and images that a function returns.

A file has `train_images`, `train_labels`, `test_images` and `test_labels`, or just `images` and
`labels`; see `Stored` for their layout. It may hold `num_classes` too.
"""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from cpr_wrap._registry import call
from cpr_wrap.data.images import ImageData, Stored, Wanted, collect

# A file may promise this many bytes, or so many times its own length: photographs do not shrink
# as much, but a few kilobytes of zeros can fill any memory.
_ALWAYS_ROOM, _LARGEST_RATIO = 2**28, 100


def load_npz(path: Path, part: str, wanted: Wanted) -> ImageData:
    """Load images from a file with `images` and `labels`, or with both for each half."""
    if not path.is_file():
        raise LookupError(f"expected a file of images, got {path}, which does not exist")
    stored = read_arrays(path, "train" if part == "train" else "test")
    return stored.take(wanted, name=path.stem, part="own")


def load_address(address: str, wanted: Wanted) -> ImageData:
    """Load images from a function: `mydata:load`, called without arguments."""
    found = call(address)
    if isinstance(found, tuple | list) and len(found) == 2:
        images, labels = map(np.asarray, found)
        stored = Stored(images=images, labels=labels, origin=address)
        return stored.take(wanted, name=address, part="own")
    if isinstance(found, ImageData):
        return take(found, wanted, address)
    if not hasattr(found, "__getitem__"):
        raise TypeError(
            f"{address}: expected it to return (images, labels), what load_data gives, or a data "
            f"set with a length, got {type(found).__name__}"
        )
    rows = wanted.rows(np.arange(len(found)), address)
    classes = len(getattr(found, "classes", ())) or None
    return collect(found, rows, address, classes, name=address, part="own")


def take(found: ImageData, wanted: Wanted, origin: str) -> ImageData:
    """Some of the images that a function gave."""
    rows = wanted.rows(np.arange(len(found)), origin)
    parts = {key: getattr(found, key)[rows] for key in ("images", "labels", "indices")}
    return replace(found, **parts)


def npz_files(root: Path, name: str, half: str) -> tuple[Path, Path]:
    """The two files that may hold the half "train" or "test" of a data set."""
    return root / f"{name}.npz", root / f"{name}_{half}.npz"


def read_npz(root: Path, name: str, half: str) -> Stored | None:
    """Read the half "train" or "test" of a data set, or None if there is no file for it."""
    whole, part = npz_files(root, name, half)
    if part.is_file():
        return read_arrays(part, half, named=False)
    return read_arrays(whole, half, named=True) if whole.is_file() else None


def read_arrays(path: Path, half: str, *, named: bool | None = None) -> Stored:
    """Read images and labels, of arrays that are named by their half if `named`, or found to be."""
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
            promised = sum(info.file_size for info in archive.infolist())
            if promised > max(_ALWAYS_ROOM, _LARGEST_RATIO * path.stat().st_size):
                raise ValueError(f"it promises {promised:,} bytes, which is not plausible")
            named = "images" not in file if named is None else named
            names = [f"{half}_{key}" if named else key for key in ("images", "labels")]
            if set(names) - set(file.files):
                raise LookupError(
                    f"{path}: expected the arrays {names[0]!r} and {names[1]!r}, "
                    f"got {', '.join(map(repr, file.files)) or 'none'}"
                )
            classes = int(file["num_classes"]) if "num_classes" in file else None
            images, labels = (file[name] for name in names)
    except LookupError:
        raise
    except Exception as error:  # whatever zipfile, zlib or numpy say of a damaged file
        raise RuntimeError(
            f"{path} cannot be read as an .npz file of plain arrays ({error}); "
            "is it complete? Copy or download it again"
        ) from error
    return Stored(images=images, labels=labels, origin=str(path), num_classes=classes)
