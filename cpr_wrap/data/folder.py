"""Images in folders, one folder per class; files that would run programs are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpr_wrap._registry import unknown
from cpr_wrap.data.images import ImageData, Wanted, collect

ClassMap = Mapping[str, int] | str | Path
Transform = Callable[[Any], Tensor]  # from a PIL image to pixels (C, H, W) in [0, 1]

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Pillow goes by content and not by name, and would hand PostScript to Ghostscript.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


class FolderImages(Dataset[tuple[Tensor, int]]):
    """A folder of images, laid out as `path/<class>/<image>`, read on access.

    Classes are numbered in the order of their folders' names, or by `class_map`. Images are ordered
    by class, then by name. Hidden folders and files are ignored.

    Attributes:
        root: The folder.
        name: Its name.
        classes: Names of the classes; with a class map, classes without a folder have a number.
        numbers: Which of the folder's images these are.
    """

    def __init__(
        self,
        path: str | Path,
        transform: Transform | None = None,
        num: int | None = None,
        *,
        channels: int | None = None,
        class_map: ClassMap | None = None,
    ) -> None:
        """List the images.

        Args:
            path: The folder.
            transform: Function from a PIL image to pixels `(C, H, W)` in [0, 1], e.g.
                `ZooModel.transform`, the model's own resize and crop. Without it, images keep their
                size.
            num: Keep this many images, spread evenly, so that all classes occur.
            channels: 1 for gray images, 3 for color; 3 if None.
            class_map: The number of each class folder, for models with their own order of classes:
                a mapping, or a file. JSON: `{"n01440764": 0, …}`, `{"0": ["n01440764", …], …}` or a
                list of folders. Text: a folder and a number on each line, or folders in order.
        """
        self.root = Path(path)
        if not self.root.is_dir():
            raise ValueError(
                f"{self.root}: expected a folder of images, got no folder of that name"
            )
        if channels not in (None, 1, 3):
            raise ValueError(f"channels: expected 1 (gray) or 3 (color), got {channels}")
        self.name = self.root.resolve().name
        self.transform, self.channels = transform or as_pixels, channels or 3
        entries = (entry for entry in self.root.iterdir() if entry.is_dir())
        folders = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        labels = _labels(folders, class_map, self.root)
        names = {label: name for name, label in labels.items()}
        self.classes = [names.get(label, str(label)) for label in range(max(names, default=-1) + 1)]
        files = [
            (file, labels[name]) for name in folders for file in find_pictures(self.root / name)
        ]
        if not files:
            raise ValueError(
                f"{self.root}: expected images in one folder per class, like "
                f"{self.root}/cat/1.png, got {len(folders)} folders and no image in them "
                f"({', '.join(ENDINGS)})"
            )
        rows = Wanted(num=num).rows(np.arange(len(files)), str(path), spread=True)
        self.numbers: list[int] = rows.tolist()
        self._files = [files[i] for i in self.numbers]

    @property
    def num_classes(self) -> int:
        """Number of classes k."""
        return len(self.classes)

    def __len__(self) -> int:
        return len(self._files)

    def listing(self) -> str:
        """The files with their lengths and labels, to tell one folder from another."""
        return "\n".join(
            f"{file.relative_to(self.root).as_posix()} {file.stat().st_size} {label}"
            for file, label in self._files
        )

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        """Pixels `(C, H, W)` and label of an image."""
        file, label = self._files[position]
        return self.transform(open_picture(file, self.channels)), label


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
        channels: 3 for color, 1 for gray.

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


def load_folder(
    path: str | Path, transform: Transform | None = None, num: int | None = None, **options: Any
) -> ImageData:
    """Load a folder of images, laid out as `path/<class>/<image>`, into memory.

    Args:
        path: The folder.
        transform: See `FolderImages`.
        num: See `FolderImages`.
        **options: See `FolderImages`: `channels`, `class_map`.

    Example:
        >>> from pathlib import Path
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("cat", "dog"):
        ...         Path(root, name).mkdir()
        ...         Image.new("RGB", (8, 8)).save(Path(root, name, "1.png"))
        ...     data = load_folder(root)
        >>> data.images.shape, data.labels.tolist()
        (torch.Size([2, 3, 8, 8]), [0, 1])
    """
    return some_of(FolderImages(path, transform, **options), Wanted(num=num))


def some_of(folder: FolderImages, wanted: Wanted) -> ImageData:
    """Read some images of a folder into memory."""
    origin = str(folder.root)
    rows = wanted.rows(np.arange(len(folder)), origin, spread=True)
    return collect(folder, rows, origin, folder.num_classes, name=folder.name, part="folder")


def _labels(folders: Sequence[str], class_map: ClassMap | None, root: Path) -> dict[str, int]:
    """The label of each class folder."""
    if class_map is None:
        return {name: label for label, name in enumerate(folders)}
    known = class_map if isinstance(class_map, Mapping) else _read_map(Path(class_map))
    for name, label in known.items():
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < 1_000_000:
            raise ValueError(f"class_map: expected a class's number for {name!r}, got {label!r}")
    for name in folders:
        if name not in known:
            raise LookupError(f"class_map: {unknown(f'folder of {root}', name, list(known))}")
    return dict(known)


def _read_map(path: Path) -> dict[str, int]:
    """Read a class map in one of the usual forms."""
    try:
        text = path.read_text()
        content: Any = json.loads(text) if path.suffix == ".json" else _lines(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"class_map: {path} cannot be read ({error})") from error
    if isinstance(content, list):
        content = {name: label for label, name in enumerate(content)}
    if not isinstance(content, dict):
        raise ValueError(f"class_map: {path}: expected folders and numbers, got {content!r:.80}")
    if all(name.isdecimal() and isinstance(value, list) for name, value in content.items()):
        content = {str(value[0]): int(name) for name, value in content.items() if value}
    return {str(name): label for name, label in content.items()}


def _lines(text: str) -> list[str] | dict[str, int]:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if all(len(line) == 2 and line[1].isdecimal() for line in lines):
        return {name: int(label) for name, label in lines}
    return [line[0] for line in lines]
