"""Images in folders, one folder a class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpr_wrap._checks import check_images
from cpr_wrap.data.images import ImageData

Transform = Callable[[Any], Tensor]  # from a PIL image to pixels (C, H, W) in [0, 1]

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def as_pixels(image: Any) -> Tensor:
    """Pixels `(3, H, W)` in [0, 1] of a PIL image, at its own size."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float().div_(255)


def load_folder(
    path: str | Path, transform: Transform | None = None, num: int | None = None
) -> ImageData:
    """Load a folder of images, laid out as `path/<class>/<image>`.

    Classes are numbered in the order of their folders' names, images come class by class in the
    order of theirs.

    Args:
        path: The folder.
        transform: Makes pixels `(C, H, W)` in [0, 1] of a PIL image, e.g. `ZooModel.transform`,
            the resize and crop a model was made for. Without it images keep their size.
        num: Keep this many images, spread evenly over all of them, so that all classes are seen.
    """
    root = Path(path)
    if not root.is_dir():
        raise ValueError(f"{root}: expected a folder of images, got no folder of that name")
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((root / name).rglob("*"))
        if file.suffix.lower() in _ENDINGS
    ]
    if not files:
        raise ValueError(
            f"{root}: expected images in one folder for each class, like {root}/cat/1.png, got "
            f"{len(classes)} folders and no image in them ({', '.join(_ENDINGS)})"
        )
    if num is not None and not 1 <= num <= len(files):
        raise ValueError(f"num: expected 1 to {len(files)}, the images in {root}, got {num}")
    chosen = range(len(files)) if num is None else [i * len(files) // num for i in range(num)]
    images = [_read(files[i][0], transform or as_pixels) for i in chosen]
    sizes = {tuple(image.shape) for image in images}
    if len(sizes) > 1:
        raise ValueError(
            f"{root}: expected images of one size, got {sorted(sizes)[:3]}; "
            "pass a transform that resizes, e.g. the model's own (ZooModel.transform)"
        )
    pixels = torch.stack(images)
    check_images(pixels, name=str(root))
    return ImageData(
        images=pixels,
        labels=torch.tensor([files[i][1] for i in chosen]),
        indices=torch.tensor(list(chosen)),
        name=root.name,
        part="folder",
        num_classes=len(classes),
    )


def _read(file: Path, transform: Transform) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return transform(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise RuntimeError(f"{file} cannot be read as an image ({error})") from error
