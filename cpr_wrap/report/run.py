"""One evaluation with its name and gallery: what tables, figures and exports are made of."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cpr_wrap.metrics import RobustnessCurve, Theorem1Bound, Theorem2Curve, theorems_of
from cpr_wrap.report.confidence import error_band, grid
from cpr_wrap.report.gallery import Gallery, load_gallery
from cpr_wrap.report.wording import eps_text


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """An evaluation to be shown.

    Attributes:
        curve: The curve; its `details` hold whatever else is known.
        name: What to call it.
        gallery: Pictures, if any were made.
        folder: Where it was read from.
    """

    curve: RobustnessCurve
    name: str
    gallery: Gallery | None = None
    folder: Path | None = None

    @classmethod
    def of(
        cls, curve: RobustnessCurve, name: str | None = None, gallery: Gallery | None = None
    ) -> Run:
        """Wrap a curve; its name is taken from its details unless given."""
        return cls(curve=curve, name=name or _name(curve, "run"), gallery=gallery)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a result folder, with its gallery if it has one."""
        from cpr_wrap.evaluation.result import load_result

        path = Path(folder)
        curve = load_result(path)
        name = _name(curve, path.resolve().name)
        return cls(curve=curve, name=name, gallery=load_gallery(path), folder=path)

    @property
    def details(self) -> Mapping[str, Any]:
        """What came with the curve."""
        return self.curve.details

    def part(self, key: str) -> Mapping[str, Any]:
        """A part of the details that is itself a table of names; empty where there is none."""
        value = self.details.get(key)
        return value if isinstance(value, Mapping) else {}

    def rows(self, key: str) -> list[Mapping[str, Any]]:
        """A part of the details that is a list of rows; empty where there is none."""
        value = self.details.get(key)
        if not isinstance(value, Sequence) or isinstance(value, str):
            return []
        return [row for row in value if isinstance(row, Mapping)]

    @property
    def settings(self) -> Mapping[str, Any]:
        """How the evaluation was run."""
        return self.part("settings")

    @property
    def rule(self) -> Mapping[str, Any]:
        """The rejection rule: its name and settings; empty where not recorded."""
        rule = self.settings.get("rule")
        return rule if isinstance(rule, Mapping) else {}

    @property
    def dataset(self) -> str:
        """Name of the data set, or nothing."""
        return _text(self.details.get("dataset"))

    @property
    def points(self) -> Mapping[str, Tensor] | None:
        """The stored points `clean`, `outer` and `rejected`, `(N, ...)` each, if they are here."""
        points = self.details.get("points")
        return points if isinstance(points, Mapping) else None

    @property
    def budget(self) -> str:
        """Norm and eps as people write them, e.g. `Linf 8/255`."""
        return f"{self.curve.records.norm} {eps_text(self.curve.eps)}"

    @property
    def command(self) -> str:
        """The command that makes the run again, or nothing."""
        command = self.details.get("command")
        if isinstance(command, str):
            return command
        return shlex.join(map(str, command)) if isinstance(command, Sequence) else ""

    @property
    def passes_per_image(self) -> float | None:
        """Forwards and backwards an image, if they were counted."""
        total = self.part("passes_total")
        if "per_image" in total:
            return float(total["per_image"])
        if "forwards" in total and "backwards" in total:
            return float(total["forwards"] + total["backwards"]) / len(self.curve.records)
        return None

    @cached_property
    def band(self) -> tuple[list[float], list[float]]:
        """Lower and upper ends of the robustness on the grid of `confidence.grid`."""
        band = error_band(self.curve, grid())
        return (1 - band.high).tolist(), (1 - band.low).tolist()

    @cached_property
    def theorems(self) -> tuple[Theorem1Bound, Theorem2Curve] | None:
        """Both theorems, where distances to the boundary were measured in the rule's own norm.

        At a rejected point z the network disagrees with itself at z and at T(z), so the boundary is
        within the radius of it: the distances are no larger than that.
        """
        records = self.curve.records
        if records.boundary_distance is None or self.rule.get("name") != "cpr":
            return None
        if self.rule.get("norm", records.norm) != records.norm:
            return None
        radius = float(self.rule["radius"])
        nearest = torch.minimum(records.boundary_distance, records.rejected_radius + radius)
        return theorems_of(replace(records, boundary_distance=nearest), radius)


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
    """Names that tell runs apart: with data set and budget where names repeat, then numbered."""
    names = [run.name for run in runs]
    for more in ([run.dataset for run in runs], [run.budget for run in runs]):
        times = Counter(names)
        names = [
            f"{name} · {extra}" if times[name] > 1 and extra else name
            for name, extra in zip(names, more, strict=True)
        ]
    times = Counter(names)
    seen: Counter[str] = Counter()
    for place, name in enumerate(names):
        seen[name] += 1
        if times[name] > 1:
            names[place] = f"{name} #{seen[name]}"
    return names


def _text(value: object) -> str:
    """A name out of what may be text or a description with a name in it."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("name", "address") if key in value), "")
    return value if isinstance(value, str) else ""


def _name(curve: RobustnessCurve, otherwise: str) -> str:
    given = _text(curve.details.get("name"))
    return given or _text(curve.details.get("model")) or otherwise
