"""Many result folders as one table: `results("runs/**").to_frame()`."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_wrap._checks import data_frame
from cpr_wrap.evaluation.result import RESULT, load_result
from cpr_wrap.metrics import PAPER_LOSSES, RobustnessCurve
from cpr_wrap.metrics.comparison import tidy_row
from cpr_wrap.metrics.losses import LossLike


@dataclass(frozen=True, eq=False)
class Results:
    """Result folders that were found, without their points.

    Attributes:
        folders: The folders.
        curves: Their curves, in the same order.
    """

    folders: tuple[Path, ...]
    curves: tuple[RobustnessCurve, ...]

    def __len__(self) -> int:
        return len(self.folders)

    def __iter__(self) -> Iterator[RobustnessCurve]:
        return iter(self.curves)

    def rows(self, losses: Sequence[LossLike] = PAPER_LOSSES) -> list[dict[str, Any]]:
        """One row of plain values per run; docs/results.md describes the columns."""
        return [
            {**tidy_row(curve, losses), "folder": str(folder)}
            for folder, curve in zip(self.folders, self.curves, strict=True)
        ]

    def to_frame(self, losses: Sequence[LossLike] = PAPER_LOSSES) -> Any:
        """The rows as a pandas DataFrame."""
        return data_frame(self.rows(losses))


def results(where: str | Path | Iterable[str | Path]) -> Results:
    """Find result folders and read them.

    Args:
        where: A result folder, a folder with results anywhere below it, a pattern like `runs/**`,
            or several of these.

    Example:
        >>> import tempfile
        >>> from cpr_wrap import RobustnessCurve, save_result
        >>> from cpr_wrap.metrics import Records
        >>> row = {"index": 0, "label": 3, "clean_label": 3, "outer_broken": False, "outer_by": "",
        ...        "outer_distance": None, "rejected_radius": 0.1, "rejected_by": "LCIA"}
        >>> curve = RobustnessCurve(Records.from_rows([row], eps=0.3, norm="Linf"))
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     _ = save_result(curve, f"{runs}/a"), save_result(curve, f"{runs}/b")
        ...     found = results(f"{runs}/*")
        >>> [folder.name for folder in found.folders], found.rows()[0]["eps"]
        (['a', 'b'], 0.3)
    """
    folders = tuple(result_folders([where] if isinstance(where, str | Path) else where))
    return Results(folders, tuple(load_result(folder, points=False) for folder in folders))


def result_folders(several: Iterable[str | Path]) -> list[Path]:
    """The result folders that folders or patterns name, each once; those of one name sorted."""
    found: dict[Path, None] = {}
    for each in several:
        here = _named(each)
        if not here:
            raise FileNotFoundError(f"{each}: found no result folder, which has a {RESULT}")
        found.update(dict.fromkeys(here))
    return list(found)


def _named(where: str | Path) -> list[Path]:
    path = Path(where)
    if path.is_dir():
        # A result folder holds a store, but no other results.
        return [path] if (path / RESULT).exists() else _below(path.rglob(RESULT))
    matches = [Path(match) for match in glob.glob(str(where), recursive=True)]
    return _below(match / RESULT for match in matches if (match / RESULT).is_file())


def _below(files: Iterable[Path]) -> list[Path]:
    return sorted({file.parent for file in files})
