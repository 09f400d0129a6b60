"""Data sets in the folders torchvision makes and downloads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpr_wrap._checks import import_extra
from cpr_wrap.data.images import Bytes


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Where torchvision keeps a data set below its root, and how it names the halves.

    Attributes:
        dataset: Class in `torchvision.datasets`.
        train: A file that is there when the training half is.
        test: A file that is there when the test half is.
        url: Where people find the data set.
        split_names: Whether the class takes `split="test"` and not `train=False`.
        channels_first: Whether its images are `(N, C, H, W)`.
    """

    dataset: str
    train: str
    test: str
    url: str
    split_names: bool = False
    channels_first: bool = False

    def file(self, root: Path, half: str) -> Path:
        """The file to look for."""
        return root / (self.train if half == "train" else self.test)


def read_torchvision(root: Path, folder: Folder, half: str, download: bool) -> Bytes | None:
    """Read the half "train" or "test" of a data set, or None if its folder is not there.

    With `download`, torchvision fetches what is missing.
    """
    found = folder.file(root, half).is_file()
    if not found and not download:
        return None
    datasets = import_extra("torchvision.datasets")
    choice: dict[str, Any] = {"split": half} if folder.split_names else {"train": half == "train"}
    try:
        data = getattr(datasets, folder.dataset)(str(root), download=download, **choice)
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split())
        if found:
            raise RuntimeError(
                f"{folder.file(root, half)} is there, but torchvision cannot read the data set "
                f"({reason}); download it again"
            ) from error
        raise RuntimeError(
            f"could not download {folder.dataset} ({reason}): get it from {folder.url} and put it "
            f"where torchvision looks, {folder.file(root, half)}"
        ) from error
    images = np.asarray(data.data)
    if folder.channels_first:
        images = images.transpose(0, 2, 3, 1)
    labels = np.asarray(data.labels if folder.split_names else data.targets)
    return Bytes(images=images, labels=labels, origin=str(root))
