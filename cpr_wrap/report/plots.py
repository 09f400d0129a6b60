"""Figures for papers, in matplotlib, which is imported when a figure is made and not before."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpr_wrap._checks import import_extra
from cpr_wrap._files import write_atomically
from cpr_wrap.report.charts import MOST_BANDS, by_threat
from cpr_wrap.report.run import RunLike, as_runs, grid, labels

SUFFIXES = (".png", ".svg", ".pdf")

# Distinguishable for color-blind readers, and dark enough for print.
COLORS = ("#0b62b0", "#c1440e", "#0d7a5f", "#8a2f8f", "#8a6500", "#3f4bb8", "#a3184f", "#4d5560")
# A legend of more runs would cover the curves, and a wider one squeeze them: it stands below them.
_LEGEND_INSIDE, _WIDTH_INSIDE = 6, 0.7
_LEGEND_MARK, _LETTER, _LEGEND_LINE = 0.6, 0.065, 0.15  # inches of a legend in small print
_THEOREMS = {1: ("Theorem 1, at least", ":"), 2: ("Theorem 2", "--")}
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (4, 1.5, 1, 1.5)), (0, (1.5, 1)))


def curve_figure(
    curves: RunLike | Sequence[RunLike],
    names: Sequence[str] | None = None,
    *,
    band: bool | None = None,
    theory: bool = False,
    size: tuple[float, float] = (4.5, 3.2),
) -> Any:
    """Robustness with rejection over alpha, on one axis for each threat model.

    Args:
        curves: Curves, runs or result folders.
        names: Names in the legend; by default those of the runs.
        band: Whether to draw 95 % intervals over images; by default only for up to three runs.
        theory: Whether to draw the theorems where they apply.
        size: Width and height of one axis in inches; a long legend adds to it.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    runs = as_runs(curves)
    names = labels(runs) if names is None else list(names)
    if len(names) != len(runs):
        raise ValueError(f"names: expected {len(runs)}, one per curve, got {len(names)}")
    band = len(runs) <= MOST_BANDS if band is None else band
    threats = by_threat(runs)
    figure, several = blank_figure((size[0], size[1] * len(threats)), len(threats))
    for axes, (threat, places) in zip(several, threats, strict=True):
        for place in places:
            color = COLORS[place % len(COLORS)]
            style = {"linestyle": _DASHES[place // len(COLORS) % len(_DASHES)], "color": color}
            runs[place].curve.plot(axes, label=names[place], band=band, lw=1.5, **style)
            for number, heights in runs[place].theory.items() if theory else ():
                name, line = _THEOREMS[number]
                label = f"{runs[place].name}: {name}"
                axes.plot(grid().tolist(), heights, line, color=color, lw=1, label=label)
        if len(threats) > 1:
            axes.set_title(threat, fontsize="medium")
    if max(len(runs), len(several[0].lines)) > 1:
        _add_legend(figure, len(runs))
    return figure


def _add_legend(figure: Any, runs: int) -> None:
    """Name the lines inside each axis or, if there is no room, below all of them."""
    names = [name for axes in figure.axes for name in axes.get_legend_handles_labels()[1]]
    width, height = figure.get_size_inches()
    needed = _LEGEND_MARK + _LETTER * max(map(len, names), default=0)
    if runs > _LEGEND_INSIDE or needed > _WIDTH_INSIDE * width:
        figure.set_size_inches(max(width, needed), height + _LEGEND_LINE * (len(names) + 1))
        figure.legend(loc="outside lower left", frameon=False, fontsize="x-small")
        return
    for axes in figure.axes:
        axes.legend(frameon=False, fontsize="small")


def check_suffix(path: Path) -> None:
    """Refuse a figure file with an unknown ending."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"expected a file that ends in {', '.join(SUFFIXES)}, got {path.name!r}")


def write_figure(figure: Any, path: str | Path, *, dpi: int = 300) -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's ending; the output is deterministic."""
    path = Path(path)
    check_suffix(path)
    # No date and no random names: a figure under version control changes only with its data.
    date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    matplotlib, data = import_extra("matplotlib"), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "cpr-wrap"}):
        figure.savefig(data, format=path.suffix[1:].lower(), dpi=dpi, metadata=date)
    write_atomically(path, data.getvalue())
    return path


def blank_figure(size: tuple[float, float], rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure of this size in inches, and its axes, one below the other."""
    # A figure without pyplot: no global state, no window, no backend to choose.
    figure = import_extra("matplotlib.figure").Figure(figsize=size, layout="constrained")
    several = figure.subplots(rows, squeeze=False)[:, 0].tolist()
    for axes in several:
        axes.grid(visible=True, alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, several
