"""Data sets in NumPy's `.npz` files.

Either one file `<name>.npz` with `train_images`, `train_labels`, `test_images` and `test_labels`,
or two files `<name>_train.npz` and `<name>_test.npz` with `images` and `labels`. Images are uint8,
`(N, H, W)` or `(N, H, W, C)`.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from cpr_wrap.data.images import Bytes


def npz_files(root: Path, name: str, half: str) -> tuple[Path, Path]:
    """The two files that may hold the half "train" or "test" of a data set."""
    return root / f"{name}.npz", root / f"{name}_{half}.npz"


def read_npz(root: Path, name: str, half: str) -> Bytes | None:
    """Read the half "train" or "test" of a data set, or None if there is no file for it."""
    whole, part = npz_files(root, name, half)
    if part.is_file():
        return read_arrays(part, "images", "labels")
    if whole.is_file():
        return read_arrays(whole, f"{half}_images", f"{half}_labels")
    return None


def read_arrays(path: Path, images_key: str, labels_key: str) -> Bytes:
    """Read images and labels from one file and see that they belong together."""
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in (images_key, labels_key) if key not in file]
            if missing:
                raise LookupError(
                    f"{path}: expected the arrays {images_key!r} and {labels_key!r}, "
                    f"got {', '.join(map(repr, file.files)) or 'none'}"
                )
            images, labels = file[images_key], file[labels_key]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise RuntimeError(
            f"{path} cannot be read as an .npz file of plain arrays ({error}); "
            "is it complete? Copy or download it again"
        ) from error
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ValueError(
            f"{path}: expected {images_key!r} of type uint8 and shape (N, H, W) or (N, H, W, C), "
            f"got {images.dtype} {images.shape}"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: expected one integer label for each of the {len(images)} images, "
            f"got {labels.dtype} {labels.shape}"
        )
    return Bytes(images=images, labels=labels, origin=str(path))
