"""The robustness curves of all methods, in one figure a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cpr_wrap.report import curve_figure, write_figure
from cpr_wrap.report.wording import eps_text
from study.paper import SEEN, UNSEEN
from study.read import DATASETS, Result, Results
from study.stages import MAIN

SUFFIXES = (".svg", ".png")

# One colour a network, distinguishable for colour-blind readers; the rule is the line's dashes.
_COLOURS = {
    "AT": "#0b62b0",
    "TRADES": "#c1440e",
    "CCAT": "#0d7a5f",
    "RCD": "#8a2f8f",
    "ATRR": "#8a6500",
    "natural": "#4d5560",
}
_DASHES: dict[str, Any] = {
    "": (0, (1, 1.5)),
    "CR": (0, (6, 2)),
    "CPR": "-",
    "CPR calibrated": (0, (9, 1.5, 1, 1.5)),
}
_OWN_RULE = (0, (4, 1.5, 1, 1.5))


def figure_name(stage: str, budget: str) -> str:
    """The name of a figure's files, without their endings."""
    return f"curves-{budget}" if stage == "main" else f"curves-{stage}-{budget}"


def draw_curves(root: Path) -> list[Path]:
    """Draw what the main table and CIFAR-10's have, as SVG and PNG.

    Args:
        root: The folder of published results.
    """
    written = []
    results = Results(root)
    for stage in DATASETS:
        for budget in (SEEN, UNSEEN):
            table = results.table(budget, stage)
            # CPR last, so that it is drawn on top.
            order = sorted(table, key=lambda name: ("+CPR" in name, _place(name), name))
            if not order:
                continue
            figure = _drawn([table[name] for name in order])
            for suffix in SUFFIXES:
                path = root / f"{figure_name(stage, budget)}{suffix}"
                written.append(write_figure(figure, path, dpi=150))
    return written


def _place(method: str) -> int:
    names = list(MAIN)
    return names.index(method) if method in names else len(names)


def _drawn(found: list[Result]) -> Any:
    """A figure in which a method looks the same whichever others are there."""
    figure = curve_figure([result.run for result in found], band=False, size=(6.4, 4.2))
    axes = figure.axes[0]
    for line, result in zip(axes.lines, found, strict=True):
        network, _, rule = result.method.partition("+")
        own = rule == "" and network in ("CCAT", "RCD", "ATRR")
        line.set(
            color=_COLOURS.get(network, "black"),
            linestyle=_OWN_RULE if own else _DASHES.get(rule, "-"),
            linewidth=2.2 if rule.startswith("CPR") else 1.4,
        )
    axes.set_ylim(-0.02, 1.02)  # a line at 0 or 1 is to be seen
    images = sorted({result.images for result in found})
    count = "–".join(map(str, dict.fromkeys((images[0], images[-1]))))
    axes.set_title(f"ε = {eps_text(found[0].curve.eps)}, n = {count}", fontsize="medium")
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
