"""Data sets in the folders torchvision makes and downloads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpr_wrap._checks import import_extra
from cpr_wrap.data.images import Stored


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A known data set, and where torchvision stores it."""

    shape: tuple[int, int, int]  #: `(C, H, W)` of an image.
    num_classes: int  #: How many classes it has.
    source: str  #: Its class in `torchvision.datasets`.
    train: str  #: A file that exists if the training set does.
    test: str  #: A file that exists if the test set does.
    url: str  #: Home page of the data set.
    split_names: bool = False  #: Whether the class takes `split="test"` instead of `train=False`.
    bundled: Path | None = None  #: A part of its test set that comes with this package.

    def file(self, root: Path, half: str) -> Path:
        """The file to look for."""
        return root / (self.train if half == "train" else self.test)


def read_torchvision(root: Path, dataset: DataSet, half: str, download: bool) -> Stored | None:
    """Read the half "train" or "test"; None if it is not there and `download` is not asked for."""
    file = dataset.file(root, half)
    found = file.is_file()
    if not found and not download:
        return None
    make = getattr(import_extra("torchvision.datasets"), dataset.source)
    choice: dict[str, Any] = {"split": half} if dataset.split_names else {"train": half == "train"}
    try:
        data = make(str(root), download=download, **choice)
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RuntimeError(
            f"{file} is there, but torchvision cannot read the data set ({reason}); "
            "download it again"
            if found
            else f"could not download {dataset.source} ({reason}): get it from {dataset.url} and "
            f"put it where torchvision looks, {file}"
        ) from error
    labels = np.asarray(data.labels if dataset.split_names else data.targets)
    return Stored(images=np.asarray(data.data), labels=labels, origin=str(root))
