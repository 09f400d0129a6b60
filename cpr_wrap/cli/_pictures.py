"""Image files as a model's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from cpr_wrap.data.folder import ENDINGS, as_pixels, find_pictures, open_picture
from cpr_wrap.zoo import ZooModel


def pictures_at(path: Path) -> list[Path]:
    """The file itself, or the image files in a folder and below it, in order of their names."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise ValueError(f"{path}: expected an image file or a folder of them, got nothing there")
    files = find_pictures(path)
    if not files:
        raise ValueError(f"{path}: expected image files in it ({', '.join(ENDINGS)}), got none")
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
    """Bring an image to the model's channels and size, if these are known."""
    picture = open_picture(file, facts.channels or 3)
    if facts.transform is not None:
        return facts.transform(picture)
    if facts.input_shape is not None:
        _, height, width = facts.input_shape
        if picture.size != (width, height):
            picture = picture.resize((width, height))
    return as_pixels(picture)
