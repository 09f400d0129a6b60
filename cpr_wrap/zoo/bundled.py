"""Models that come with this package."""

from __future__ import annotations

from pathlib import Path

from cpr_wrap.zoo.config import CONFIG
from cpr_wrap.zoo.local import load_saved
from cpr_wrap.zoo.model import ZOOS, Options, ZooModel, unknown

_FOLDER = Path(__file__).parent.parent / "bundled" / "models"


def bundled_names(folder: Path = _FOLDER) -> list[str]:
    """The models there are, one folder each."""
    return sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))


@ZOOS.register("bundled")
def load_bundled(name: str, options: Options) -> ZooModel:
    """Load a model that needs no download, e.g. `bundled:mnist-compact-at`."""
    if name not in bundled_names(_FOLDER):
        raise unknown("bundled model", name, bundled_names(_FOLDER))
    return load_saved(_FOLDER / name, f"bundled:{name}", options)
