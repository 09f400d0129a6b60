"""Image files as pixels, of any bit depth; formats that run programs are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Transform = Callable[[Any], Tensor]  # from a PIL image to pixels (C, H, W) in [0, 1]

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Pillow goes by content and not by name, and would hand PostScript to Ghostscript.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def find_pictures(folder: Path) -> list[Path]:
    """The image files in a folder and below it, in the order of their names; no hidden ones."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in ENDINGS
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def open_picture(file: Path, channels: int = 3) -> Any:
    """Read an image file.

    Args:
        file: The file.
        channels: 3 for colour, 1 for grey.

    Returns:
        A PIL image of mode RGB or L, rounded to 8 bits per channel.
    """
    from PIL import Image

    Image.init()
    formats = [name for name in _FORMATS if name in Image.OPEN]
    try:
        with Image.open(file, formats=formats) as image:
            image.load()
            plain = _eight_bits(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise RuntimeError(f"{file} cannot be read as an image ({error})") from error
    if plain is None:
        raise ValueError(
            f"{file}: expected pixels of 8 or 16 bits, or floats in [0, 1], got mode "
            f"{image.mode!r} of another range; convert it to 8 bits"
        )
    return plain.convert("L" if channels == 1 else "RGB")


def _eight_bits(image: Any) -> Any:
    """The image with 8 bits for each value, None if its range is unknown."""
    from PIL import Image

    deep = image.mode.startswith("I;16")
    if not deep and image.mode not in ("I", "F"):
        return image
    values = np.asarray(image)
    # Some versions of Pillow read 16 bits as mode I, which may hold 32.
    if deep or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray(np.round(values / 257).astype(np.uint8))
    if image.mode == "F" and values.min() >= 0 and values.max() <= 1:
        return Image.fromarray(np.round(values * 255).astype(np.uint8))
    return None


def as_pixels(image: Any) -> Tensor:
    """Pixels `(C, H, W)` in [0, 1] of a PIL image of mode RGB or L, at its own size."""
    pixels = torch.from_numpy(np.array(image)).float().div_(255)
    return pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
