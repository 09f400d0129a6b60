"""Advice as a table and as a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cpr_wrap._text import MISSING, eps_text
from cpr_wrap.evaluation.advice import ADVISED, LEFT_OUT, Advice, Candidate
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report.plots import COLORS, blank_figure
from cpr_wrap.report.table import Cell, Entries, Table
from cpr_wrap.report.tables import loss_cell, share_cell
from cpr_wrap.rule import rule_settings

_MARKS = "osD^vP*X"


def advice_table(advice: Advice) -> Table:
    """All candidates: clean rejection, latency, and loss with its interval on both sets."""
    chosen, other = advice.images
    tried, milliseconds = advice.candidates, [1000 * each.latency for each in advice.candidates]
    columns: dict[str, Entries] = {
        "rule": [each.rule.describe() for each in tried],
        "clean rejected": [share_cell(each.clean_rejection) for each in tried],
        "ms per image": [Cell(f"{time:.3g}", time) for time in milliseconds],
        f"loss, {chosen} validation images": [
            _loss(advice, each.curve, "" if each.full else "≥ ") for each in tried
        ],
        f"loss, {other} others": [
            _loss(advice, each.reported, best=each.status == ADVISED and not advice.tied)
            for each in tried
        ],
        "verdict": [
            each.status if each.status != LEFT_OUT else f"{LEFT_OUT}: {each.why}" for each in tried
        ],
    }
    caption = (
        "In parentheses: 95 % intervals over images. ≥: dropped after the screening. "
        "Tied: the difference to the smallest loss is within chance; the cheapest is advised. "
        "All losses are lower bounds: a stronger attack can only raise them."
    )
    title = (
        f"Total robust loss where rejection costs {advice.cost.name} and a mistake 1; "
        f"{advice.norm} eps {eps_text(advice.eps)}, budget {advice.budget}"
    )
    return Table.of(columns, title=title, caption=caption)


def _loss(
    advice: Advice, curve: RobustnessCurve | None, lower: str = "", best: bool = False
) -> Cell:
    if curve is None:
        return Cell(MISSING)
    cell = loss_cell(*advice.loss(curve), best)
    return replace(cell, text=lower + cell.text)


def advice_figure(advice: Advice, *, size: tuple[float, float] = (5.2, 3.6)) -> Any:
    """Loss over clean rejection on the validation images; hollow marks are lower bounds."""
    figure, (axes,) = blank_figure(size)
    tried = [each for each in advice.candidates if each.curve is not None]
    kinds = list(dict.fromkeys(_kind(each) for each in tried))
    for place, kind in enumerate(kinds):
        color, mark = COLORS[place % len(COLORS)], _MARKS[place % len(_MARKS)]
        for number, each in enumerate(each for each in tried if _kind(each) == kind):
            assert each.curve is not None
            loss, interval = advice.loss(each.curve)
            axes.errorbar(
                100 * each.clean_rejection,
                loss,
                yerr=[[loss - interval.low], [interval.high - loss]],
                marker=mark,
                color=color,
                markerfacecolor=color if each.full else "white",
                elinewidth=0.8,
                alpha=1.0 if each.full else 0.55,
                label=kind if number == 0 else None,
            )
    best = advice.best
    assert best.curve is not None
    where = (100 * best.clean_rejection, advice.loss(best.curve)[0])
    axes.annotate("advised", where, xytext=(8, 8), textcoords="offset points", fontsize="small")
    axes.set(xlabel="clean images rejected, %", ylabel=f"total robust loss, {advice.cost.name}")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper left", frameon=False, fontsize="small", ncols=3)
    return figure


def _kind(candidate: Candidate) -> str:
    """The rule and what a verdict of it costs: candidates of one kind differ by a setting."""
    steps = rule_settings(candidate.rule).get("steps")
    return candidate.rule.name + (f", {steps} steps" if steps else "")
