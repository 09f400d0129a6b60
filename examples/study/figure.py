"""The robustness curves of all methods, in one figure a budget."""

from __future__ import annotations

from pathlib import Path

from cpr_wrap.report import curve_figure, write_figure
from study.paper import SEEN, UNSEEN
from study.read import Results
from study.stages import MAIN

SUFFIXES = (".svg", ".png")


def draw_curves(root: Path) -> list[Path]:
    """Draw what the main table has, as SVG and PNG.

    Args:
        root: The folder of published results.
    """
    written = []
    results = Results(root)
    for budget in (SEEN, UNSEEN):
        table = results.table(budget)
        runs = [table[method].run for method in MAIN if method in table]
        if not runs:
            continue
        figure = curve_figure(runs, band=False, size=(6.4, 4.2))
        for suffix in SUFFIXES:
            path = root / f"curves-{budget}{suffix}"
            written.append(write_figure(figure, path, dpi=150))
    return written
