"""Image files as a model's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpr_wrap.zoo import ZooModel

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def find_pictures(path: Path) -> list[Path]:
    """The file itself, or the image files in a folder and below it, in order of their names."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise ValueError(f"{path}: expected an image file or a folder of them, got nothing there")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _ENDINGS)
    if not files:
        raise ValueError(f"{path}: expected image files in it ({', '.join(_ENDINGS)}), got none")
    return files


def read_pictures(
    files: Sequence[Path], facts: ZooModel, batch_size: int
) -> Iterator[tuple[Sequence[Path], Tensor]]:
    """Read files batch by batch, at the size that a model takes.

    Args:
        files: Image files.
        facts: What the model's source knows of its input.
        batch_size: Files in a batch.

    Yields:
        Files and their pixels `(N, C, H, W)` in [0, 1].
    """
    for first in range(0, len(files), batch_size):
        batch = files[first : first + batch_size]
        yield batch, torch.stack([_read(file, facts) for file in batch])


def _read(file: Path, facts: ZooModel) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            if facts.transform is not None:
                return facts.transform(image.convert("RGB"))
            return _fit(image, facts)
    except (UnidentifiedImageError, OSError) as error:
        raise RuntimeError(f"{file} cannot be read as an image ({error})") from error


def _fit(image: Any, facts: ZooModel) -> Tensor:
    """Bring an image to the model's channels and size, if these are known."""
    channels = 3 if facts.input_shape is None else facts.input_shape[0]
    picture = image.convert("L" if channels == 1 else "RGB")
    if facts.input_shape is not None:
        _, height, width = facts.input_shape
        if picture.size != (width, height):
            picture = picture.resize((width, height))
    pixels = torch.from_numpy(np.array(picture)).float().div_(255)
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)
