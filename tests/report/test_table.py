from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from cpr_wrap.report.table import Cell, Column, Table, latex_text, mark_best

COLUMNS = (
    Column("method", words=True),
    Column("α₀ = 0", group="step", above="seen (ε = 0.3)", alone="seen α₀ = 0"),
    Column("α₀ = 0.1", group="step", above="seen (ε = 0.3)", alone="seen α₀ = 0.1"),
    Column("t = 2", group="ramp", above="seen (ε = 0.3)", alone="seen t = 2"),
)


def table(name="AT|CPR_1 & co"):
    first = (Cell(name), Cell("0.125", 0.125, best=True), Cell("–"), Cell("1.000", 1.0))
    second = (Cell("CR"), Cell("0.250", 0.25), Cell("0.333", 1 / 3), Cell("1.000", 1.0))
    return Table(columns=COLUMNS, rows=(first, second), title="Losses", caption="Small is good.")


def test_text_lines_up_and_headings_span():
    assert table("AT").render("text").splitlines() == [
        "Losses",
        "",
        "             seen (ε = 0.3)",
        "              step        ramp",
        "method  α₀ = 0  α₀ = 0.1  t = 2",
        "------  ------  --------  -----",
        "AT      0.125*         –  1.000",
        "CR      0.250      0.333  1.000",
        "* best",
        "",
        "Small is good.",
    ]


def test_text_widens_columns_for_a_long_group():
    long = Table(
        columns=(Column("a", group="a long heading"), Column("b", group="a long heading")),
        rows=((Cell("1"), Cell("2")),),
    )
    lines = long.render("text").splitlines()
    assert lines[0].strip() == "a long heading"
    assert len({len(line) for line in lines[1:]}) == 1


def test_markdown_has_one_heading_line_and_escapes_bars():
    lines = table().render("markdown").splitlines()
    assert lines[0] == "Losses"
    assert lines[2] == "| method | seen α₀ = 0 | seen α₀ = 0.1 | seen t = 2 |"
    assert lines[3] == "|:--|--:|--:|--:|"
    assert lines[4] == "| AT\\|CPR_1 & co | **0.125** | – | 1.000 |"


def test_latex_groups_and_escapes():
    text = table().render("latex")
    assert r"\multicolumn{3}{c}{seen ($\epsilon$ = 0.3)}" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"\multicolumn{2}{c}{step} & ramp \\" in text
    assert r"AT|CPR\_1 \& co & \textbf{0.125} & -- & 1.000 \\" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert text.startswith("% Losses")
    for row in rows[-2:]:
        assert row.replace(r"\&", "").count("&") == len(COLUMNS) - 1


def test_latex_signs():
    assert latex_text("50% of {α} ~ #1_a\\b") == (
        r"50\% of \{$\alpha$\} \textasciitilde{} \#1\_a\textbackslash{}b"
    )


def test_csv_has_exact_values_and_empty_cells():
    rows = list(csv.reader(io.StringIO(table('a "quoted", name').render("csv"))))
    assert rows[0] == ["method", "seen α₀ = 0", "seen α₀ = 0.1", "seen t = 2"]
    assert rows[1] == ['a "quoted", name', "0.125", "", "1"]
    assert rows[2][2] == "0.333333"


def test_rich_takes_names_as_they_are():
    console = Console(file=io.StringIO(), width=120)
    console.print(table("[bold]AT[/bold]").rich())
    shown = console.file.getvalue()
    assert "[bold]AT[/bold]" in shown
    assert "0.125" in shown
    assert "Losses" in shown
    assert "Small is good." in shown


def test_best_is_shared_by_what_reads_the_same():
    cells = [Cell("0.100", 0.1001), Cell("0.100", 0.0999), Cell("0.200", 0.2), Cell("–")]
    assert [cell.best for cell in mark_best(cells)] == [True, True, False, False]
    assert [cell.best for cell in mark_best(cells, smallest=False)] == [False, False, True, False]


def test_a_single_number_is_not_the_best():
    assert not any(cell.best for cell in mark_best([Cell("0.1", 0.1), Cell("–")]))


def test_mistaken_calls():
    with pytest.raises(ValueError, match="format: expected one of text, markdown, latex, csv"):
        table().render("html")
    with pytest.raises(ValueError, match="expected rows of 4 cells, got 1"):
        Table(columns=COLUMNS, rows=((Cell("a"),),))
