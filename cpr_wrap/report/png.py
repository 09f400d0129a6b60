"""Images as PNG, written by hand: eight bits, grey or RGB, no package needed."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

_COLOUR_TYPES = {1: 0, 3: 2}  # channels -> PNG colour type: grey, RGB


def png(image: Tensor) -> bytes:
    """Encode one image.

    Args:
        image: Pixels in [0, 1] `(C, H, W)`, one or three channels; values outside are cut.

    Returns:
        The file's bytes.
    """
    if image.dim() != 3 or image.shape[0] not in _COLOUR_TYPES or image.numel() == 0:
        raise ValueError(
            f"expected one image (C, H, W) with 1 or 3 channels, got shape {tuple(image.shape)}"
        )
    channels, height, width = image.shape
    levels = (image.detach().cpu().double() * 255).round().clamp(0, 255).to(torch.uint8)
    rows = levels.permute(1, 2, 0).reshape(height, -1)
    # Each line begins with its filter; 0 means that the pixels stand as they are.
    lines = torch.cat([rows.new_zeros(height, 1), rows], dim=1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(lines.numpy().tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(image: Tensor, longest: int = 160) -> str:
    """An image to put into a page.

    Args:
        image: Pixels in [0, 1] `(C, H, W)`.
        longest: A side longer than this is shrunk by a whole factor.
    """
    factor = -(-max(image.shape[-2:]) // longest) if image.dim() == 3 else 1
    if factor > 1:
        image = avg_pool2d(image[None], factor, ceil_mode=True)[0]
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")
