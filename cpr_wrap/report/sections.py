"""What a report says about all its runs together: the curves, the losses, the leaderboard."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_wrap.metrics import PAPER_LOSSES, clean_metrics
from cpr_wrap.report.charts import colour, curve_chart, read_out
from cpr_wrap.report.confidence import loss_intervals
from cpr_wrap.report.markup import Markup, embedded_json, join, tag
from cpr_wrap.report.run import Run
from cpr_wrap.report.table import Cell, Column, Table, mark_best
from cpr_wrap.report.tables import TABLE_1_LOSSES
from cpr_wrap.report.wording import (
    INTERVALS,
    MISSING,
    UPPER_BOUND,
    count_text,
    eps_text,
    loss_range,
    loss_text,
    percent,
    percent_range,
)

_START = 10  # the read-out's alpha in hundredths before anyone moves it


def html_table(
    table: Table, *, sortable: bool = False, style: str = "", marks: Sequence[Markup] = ()
) -> Markup:
    """A table in a box that scrolls sideways where there is no room.

    Args:
        table: The table.
        sortable: Whether headings are buttons that sort.
        style: A class for the table.
        marks: What stands before each row's name.
    """
    heads = []
    for column in table.columns:
        text = column.flat.replace(" = ", "\u00a0=\u00a0")  # an equation stays on its line
        inside = tag("button", text, type="button") if sortable else text
        words = "words" if column.words else None
        order = "none" if sortable else None
        heads.append(tag("th", inside, scope="col", class_=words, aria_sort=order))
    body = []
    for number, row in enumerate(table.rows):
        cells = []
        for place, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            name = "th" if place == 0 and column.words else "td"
            classes = " ".join(
                kind for kind, on in (("words", column.words), ("best", cell.best)) if on
            )
            cells.append(
                tag(
                    name,
                    named(marks[number], cell.text) if marks and place == 0 else cell.text,
                    scope="row" if name == "th" else None,
                    class_=classes or None,
                    data_value=cell.value,
                )
            )
        body.append(tag("tr", cells))
    caption = tag("caption", table.caption) if table.caption else None
    element = tag(
        "table",
        caption,
        tag("thead", tag("tr", heads)),
        tag("tbody", body),
        class_=" ".join(filter(None, [style, "sortable" if sortable else ""])) or None,
    )
    # A box that scrolls must be reachable by keyboard.
    return tag("div", element, class_="scroll", tabindex=0, role="group", aria_label=table.title)


def swatch(place: int) -> Markup:
    """A patch in a run's colour."""
    return tag("span", class_=f"swatch {colour(place)}", aria_hidden="true")


def named(mark: Markup, name: str) -> Markup:
    """A mark and a name that stay together."""
    return tag("span", mark, tag("span", name), class_="named")


def curves_section(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """The chart, and what it reads at an alpha of the reader's choice."""
    bands = "Bands: " + INTERVALS[0].lower() + INTERVALS[1:]
    caption = [f"{UPPER_BOUND} {bands}", _theory_key(runs)]
    return tag(
        "section",
        tag("h2", "Robustness curve" if len(runs) == 1 else "Robustness curves"),
        tag("figure", curve_chart(runs, names), id="curve-chart"),
        _read_out(runs, names),
        tag("p", caption, class_="note"),
        id="curves",
        class_="several" if len(runs) > 1 else None,
    )


def _theory_key(runs: Sequence[Run]) -> Markup | None:
    shown = [
        any(run.theorems is not None and run.theorems[which].applicable for run in runs)
        for which in (0, 1)
    ]
    if not any(shown):
        return None
    words = []
    if shown[0]:
        words.append("dotted: Theorem 1, at least this much for an ideal T")
    if shown[1]:
        words.append("dashed: Theorem 2, exactly this much for an ideal T")
    return join(
        tag("br"),
        f"In the same colour, {'; '.join(words)}; from the nearest points of the network's "
        "boundary that were found, and nearer ones would lower it.",
    )


def _read_out(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    readings = [read_out(run) for run in runs]
    rows = []
    for place, (name, reading) in enumerate(zip(names, readings, strict=True)):
        value, low, high = reading[_START]
        rows.append(
            tag(
                "tr",
                tag("th", named(swatch(place), name), scope="row", class_="words"),
                tag("td", percent(value), class_="reading"),
                tag("td", percent_range(low, high), class_="range"),
            )
        )
    heads = ["run", "robustness", "95% interval"]
    classes = ["words", None, None]
    return tag(
        "div",
        tag(
            "div",
            tag(
                "label",
                "At α = ",
                tag("output", f"{_START / 100:.2f}", id="alpha-value", for_="alpha"),
                for_="alpha",
            ),
            tag("input", type="range", id="alpha", min=0, max=100, value=_START),
            class_="slider",
        ),
        tag(
            "table",
            tag(
                "thead",
                tag(
                    "tr",
                    [
                        tag("th", head, scope="col", class_=kind)
                        for head, kind in zip(heads, classes, strict=True)
                    ],
                ),
            ),
            tag("tbody", rows),
            id="readings",
        ),
        embedded_json(readings, "readings-data"),
        class_="read-out",
    )


def losses_table(run: Run) -> Table:
    """Total robust losses with intervals, beside what the theorems say."""
    curve = run.curve
    theorems = [t for t in run.theorems or () if t.applicable]
    kinds = {"Theorem1Bound": "Thm. 1", "Theorem2Curve": "Thm. 2"}
    columns = [
        Column("rejection loss", words=True),
        Column("total"),
        Column("95% interval"),
        *(Column(kinds[type(theorem).__name__]) for theorem in theorems),
    ]
    rows = []
    intervals = loss_intervals(curve, PAPER_LOSSES)
    for loss, interval in zip(PAPER_LOSSES, intervals, strict=True):
        total = curve.total_robust_loss(loss)
        said = [theorem.total_robust_loss(loss) for theorem in theorems]
        rows.append(
            (
                Cell(loss_text(loss)),
                Cell(f"{total:.3f}", total),
                Cell(loss_range(interval.low, interval.high)),
                *(Cell(f"{value:.3f}", value) for value in said),
            )
        )
    return Table(columns=tuple(columns), rows=tuple(rows), title="Total robust loss")


def losses_content(run: Run) -> list[Markup]:
    """The one-number table of a run and what it means."""
    words = [
        "A mistake costs 1, a rejected point what the rejection loss says of its distance; smaller "
        f"is better. {INTERVALS}"
    ]
    for saying, theorem in zip(_SAYINGS, run.theorems or (), strict=False):
        words.append(saying if theorem.applicable else "")
    table = html_table(losses_table(run), style="losses")
    return [table, tag("p", words, class_="note")]


_SAYINGS = (
    " Theorem 1: at most so much for an ideal T.",
    " Theorem 2: exactly so much for an ideal T.",
)


def leaderboard_section(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """All runs in one table that sorts."""
    alike = len({(run.dataset, run.budget) for run in runs}) == 1
    columns = [
        Column("run", words=True),
        *(Column(loss_text(loss)) for loss in TABLE_1_LOSSES),
        Column("robust, α = 1"),
        Column("clean acc."),
        Column("clean rej."),
        Column("budget", words=True),
        Column("images"),
        Column("passes/image"),
    ]
    rows = [_leaderboard_row(run, name) for run, name in zip(runs, names, strict=True)]
    by_column = list(zip(*rows, strict=True))
    if alike:
        better = {**dict.fromkeys(range(1, 6), True), 6: False, 7: False, 8: True}
        for place, smallest in better.items():
            by_column[place] = tuple(mark_best(by_column[place], smallest=smallest))
    table = Table(
        columns=tuple(columns), rows=tuple(zip(*by_column, strict=True)), title="Leaderboard"
    )
    return tag(
        "section",
        tag("h2", "Leaderboard"),
        html_table(
            table, sortable=True, style="leaderboard", marks=[*map(swatch, range(len(runs)))]
        ),
        tag(
            "p",
            "Total robust losses for step and ramp rejection losses, smaller is better; accuracy "
            "of the clean images accepted, and share of them rejected. ",
            "Best in bold. " if alike else _UNLIKE,
            "Press a heading to sort.",
            class_="note",
        ),
        _differences(runs),
        id="leaderboard",
    )


_UNLIKE = "The runs differ in data or budget, so that none is the best. "


def _leaderboard_row(run: Run, name: str) -> list[Cell]:
    curve, clean = run.curve, clean_metrics(run.curve.records)
    totals = [curve.total_robust_loss(loss) for loss in TABLE_1_LOSSES]
    passes = run.passes_per_image
    accuracy = clean.accuracy_with_rejection
    accuracy_text = percent(accuracy)
    budget = f"{run.dataset} {run.budget}".strip()
    return [
        Cell(name),
        *(Cell(f"{total:.3f}", total) for total in totals),
        Cell(percent(curve.accuracy_at(1.0)), curve.accuracy_at(1.0)),
        Cell(accuracy_text, None if accuracy_text == MISSING else accuracy),
        Cell(percent(clean.rejection_rate), clean.rejection_rate),
        Cell(budget),
        Cell(count_text(len(curve.records)), float(len(curve.records))),
        Cell(MISSING if passes is None else count_text(passes), passes),
    ]


def _differences(runs: Sequence[Run]) -> Markup | None:
    """Say what makes runs hard to compare."""
    sayings = []
    if len({tuple(sorted(run.curve.records.index.tolist())) for run in runs}) > 1:
        sayings.append("on different images")
    if len({str(run.settings.get("budget")) for run in runs}) > 1:
        sayings.append("with different attack budgets")
    if len({eps_text(run.curve.eps) for run in runs}) > 1:
        sayings.append("with different ε")
    if not sayings:
        return None
    return tag("p", f"Careful: these runs were made {' and '.join(sayings)}.", class_="warning")
