"""Images in folders, one folder a class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpr_wrap._checks import check_images
from cpr_wrap.data.images import ImageData

Transform = Callable[[Any], Tensor]  # from a PIL image to pixels (C, H, W) in [0, 1]

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def as_pixels(image: Any) -> Tensor:
    """Pixels `(3, H, W)` in [0, 1] of a PIL image, at its own size."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float().div_(255)


class FolderImages(Dataset[tuple[Tensor, int]]):
    """A folder of images, laid out as `path/<class>/<image>`, each read when it is asked for.

    Classes are numbered in the order of their folders' names, images come class by class in the
    order of theirs.

    Attributes:
        root: The folder.
        name: Its name.
        classes: Names of the classes.
        numbers: Which of the folder's images these are.
    """

    def __init__(
        self, path: str | Path, transform: Transform | None = None, num: int | None = None
    ) -> None:
        """Look which images there are.

        Args:
            path: The folder.
            transform: As in `load_folder`.
            num: As in `load_folder`.
        """
        self.root = Path(path)
        self.transform = transform or as_pixels
        if not self.root.is_dir():
            raise ValueError(
                f"{self.root}: expected a folder of images, got no folder of that name"
            )
        self.name = self.root.name
        self.classes = sorted(entry.name for entry in self.root.iterdir() if entry.is_dir())
        files = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in sorted((self.root / name).rglob("*"))
            if file.suffix.lower() in _ENDINGS
        ]
        if not files:
            raise ValueError(
                f"{self.root}: expected images in one folder for each class, like "
                f"{self.root}/cat/1.png, got {len(self.classes)} folders and no image in them "
                f"({', '.join(_ENDINGS)})"
            )
        count = len(files)
        if num is not None and not 1 <= num <= count:
            raise ValueError(f"num: expected 1 to {count}, the images in {self.root}, got {num}")
        self.numbers = list(range(count) if num is None else [i * count // num for i in range(num)])
        self._files = [files[i] for i in self.numbers]

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.classes)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        """Pixels `(C, H, W)` and label of an image."""
        file, label = self._files[position]
        return _read(file, self.transform), label


def load_folder(
    path: str | Path, transform: Transform | None = None, num: int | None = None
) -> ImageData:
    """Load a folder of images, laid out as `path/<class>/<image>`, into memory.

    Args:
        path: The folder.
        transform: Makes pixels `(C, H, W)` in [0, 1] of a PIL image, e.g. `ZooModel.transform`,
            the resize and crop a model was made for. Without it images keep their size.
        num: Keep this many images, spread evenly over all of them, so that all classes are seen.
    """
    folder = FolderImages(path, transform, num)
    images, labels = zip(*(folder[i] for i in range(len(folder))), strict=True)
    sizes = {tuple(image.shape) for image in images}
    if len(sizes) > 1:
        raise ValueError(
            f"{folder.root}: expected images of one size, got {sorted(sizes)[:3]}; "
            "pass a transform that resizes, e.g. the model's own (ZooModel.transform)"
        )
    pixels = torch.stack(images)
    check_images(pixels, name=str(folder.root))
    return ImageData(
        images=pixels,
        labels=torch.tensor(labels),
        indices=torch.tensor(folder.numbers),
        name=folder.name,
        part="folder",
        num_classes=folder.num_classes,
    )


def _read(file: Path, transform: Transform) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return transform(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise RuntimeError(f"{file} cannot be read as an image ({error})") from error
