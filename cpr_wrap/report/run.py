"""One evaluation with its name and gallery: what tables, figures and exports are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from cpr_wrap._text import eps_text
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report.gallery import Gallery, load_gallery


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """An evaluation with its name and gallery."""

    curve: RobustnessCurve  #: The curve, with its evidence.
    name: str  #: Name of the run.
    gallery: Gallery | None = None  #: Pictures, if any were made.

    @classmethod
    def of(
        cls, curve: RobustnessCurve, name: str | None = None, gallery: Gallery | None = None
    ) -> Run:
        """Wrap a curve; its own name is taken unless one is given."""
        name = name or curve.about.name or curve.about.model or "run"
        return cls(curve=curve, name=name, gallery=gallery)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a result folder, with its gallery if it has one."""
        from cpr_wrap.evaluation.result import load_result

        path = Path(folder)
        curve = load_result(path)
        name = curve.about.name or curve.about.model or path.resolve().name
        return cls(curve=curve, name=name, gallery=load_gallery(path))

    @property
    def budget(self) -> str:
        """Norm and eps as people write them, e.g. `Linf 8/255`."""
        return f"{self.curve.records.norm} {eps_text(self.curve.eps)}"

    @cached_property
    def band(self) -> tuple[list[float], list[float]]:
        """Lower and upper ends of the robustness on the grid."""
        band = self.curve.error_band(grid())
        return (1 - band.high).tolist(), (1 - band.low).tolist()

    @cached_property
    def theory(self) -> dict[int, list[float]]:
        """Robustness on the grid by the theorems that apply, by their numbers."""
        return {
            number: (1 - theorem.error_at(grid())).tolist()
            for number, theorem in enumerate(self.curve.theorems() or (), start=1)
            if theorem.applicable
        }


def grid() -> Tensor:
    """The alphas `(101,)` at which bands and theory are drawn and read."""
    return torch.linspace(0, 1, 101, dtype=torch.float64)


RunLike: TypeAlias = "Run | RobustnessCurve | str | Path"
"""A run, a curve, or a result folder."""


def as_run(thing: RunLike) -> Run:
    """Accept a run, a curve, or a result folder."""
    if isinstance(thing, Run):
        return thing
    if isinstance(thing, RobustnessCurve):
        return Run.of(thing)
    if isinstance(thing, str | Path):
        return Run.load(thing)
    raise TypeError(
        f"expected a Run, a RobustnessCurve or a result folder, got {type(thing).__name__}"
    )


def as_runs(things: RunLike | Sequence[RunLike]) -> list[Run]:
    """Accept one or several of them, at least one."""
    several = things if isinstance(things, Sequence) and not isinstance(things, str) else [things]
    runs = [as_run(thing) for thing in several]
    if not runs:
        raise ValueError("expected at least one run, got none")
    return runs


def labels(runs: Sequence[Run]) -> list[str]:
    """Names that tell runs apart: with data set and budget where names repeat, then numbered.

    Of names like those of a sweep, `model+rule+eps+budget`, the parts that all share are left out.
    """
    names = _without_shared([run.name for run in runs])
    for more in ([run.curve.about.dataset for run in runs], [run.budget for run in runs]):
        names = [
            f"{name} · {extra}" if names.count(name) > 1 and extra else name
            for name, extra in zip(names, more, strict=True)
        ]
    return [
        f"{name} #{names[: place + 1].count(name)}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _without_shared(names: list[str]) -> list[str]:
    columns = list(zip(*(name.split("+") for name in names), strict=False))
    if len(set(names)) < 2 or any(name.count("+") + 1 != len(columns) for name in names):
        return names
    told = [column for column in columns if len(set(column)) > 1]
    return ["+".join(parts) for parts in zip(*told, strict=True)]
