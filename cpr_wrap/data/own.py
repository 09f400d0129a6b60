"""Your own images: an `.npz` file, or what a function returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cpr_wrap._address import call
from cpr_wrap.data.images import ImageData, Stored, Wanted, collect
from cpr_wrap.data.npz import read_arrays


def load_npz(path: Path, part: str, wanted: Wanted) -> ImageData:
    """Load images from a file with `images` and `labels`, or with both for each half."""
    if not path.is_file():
        raise LookupError(f"expected a file of images, got {path}, which does not exist")
    stored = read_arrays(path, "train" if part == "train" else "test")
    return _select(stored, path.stem, wanted)


def load_address(address: str, wanted: Wanted) -> ImageData:
    """Load images from a function: `mydata:load`, called without arguments."""
    found = call(address)
    if isinstance(found, tuple | list) and len(found) == 2:
        images, labels = (np.asarray(part) for part in found)
        return _select(Stored(images=images, labels=labels, origin=address), address, wanted)
    if not (hasattr(found, "__getitem__") or isinstance(found, ImageData)):
        raise TypeError(
            f"{address}: expected it to return (images, labels), what load_data gives, or a data "
            f"set with a length, got {type(found).__name__}"
        )
    if isinstance(found, ImageData):
        return take(found, wanted, address)
    rows = wanted.rows(np.arange(len(found)), address)
    classes = len(getattr(found, "classes", ())) or None
    return collect((found[row] for row in rows.tolist()), rows, address, "own", classes)


def take(found: ImageData, wanted: Wanted, origin: str) -> ImageData:
    """Some of the images that a function gave."""
    rows = wanted.rows(np.arange(len(found)), origin)
    parts = {key: getattr(found, key)[rows] for key in ("images", "labels", "indices")}
    return replace(found, **parts)


def _select(stored: Stored, name: str, wanted: Wanted) -> ImageData:
    numbers = np.arange(len(stored.labels))
    return stored.data(numbers, wanted.rows(numbers, stored.origin), name, "own", "")
