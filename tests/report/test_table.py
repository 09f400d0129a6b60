from __future__ import annotations

import csv
import io
import re

import pytest

from cpr_wrap.report.table import Cell, Column, Table, latex_text

COLUMNS = (
    Column("method", words=True),
    Column("seen α₀ = 0"),
    Column("seen α₀ = 0.1"),
    Column("seen t = 2"),
)


def table(name="AT|CPR_1 & co"):
    first = (Cell(name), Cell("0.125", 0.125, best=True), Cell("–"), Cell("1.000", 1.0))
    second = (Cell("CR"), Cell("0.250", 0.25), Cell("0.333", 1 / 3), Cell("1.000", 1.0))
    return Table(columns=COLUMNS, rows=(first, second), title="Losses", caption="Small is good.")


def test_text_lines_up():
    assert table("AT").render("text").splitlines() == [
        "Losses",
        "",
        "method        seen        seen    seen t = 2",
        "            α₀ = 0    α₀ = 0.1",
        "--------  --------  ----------  ------------",
        "AT          0.125*           –         1.000",
        "CR          0.250        0.333         1.000",
        "* best",
        "",
        "Small is good.",
    ]


def test_markdown_has_one_heading_line_and_escapes_bars():
    lines = table().render("markdown").splitlines()
    assert lines[0] == "Losses"
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:6]]
    assert rows[0] == ["method", "seen α₀ = 0", "seen α₀ = 0.1", "seen t = 2"]
    assert [(cell[0], cell[-1]) for cell in rows[1]] == [(":", "-"), *[("-", ":")] * 3]
    assert rows[2] == ["AT\\|CPR_1 & co", "**0.125**", "–", "1.000"]


def test_latex_escapes():
    text = table().render("latex")
    assert r"method & seen $\alpha_0$ = 0 & seen $\alpha_0$ = 0.1 & seen t = 2 \\" in text
    assert r"AT|CPR\_1 \& co & \textbf{0.125} & -- & 1.000 \\" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert text.startswith("% Losses")
    for row in rows[-2:]:
        assert row.replace(r"\&", "").count("&") == len(COLUMNS) - 1


def test_latex_signs():
    assert latex_text("50% of {α} ~ #1_a\\b") == (
        r"50\% of \{$\alpha$\} \textasciitilde{} \#1\_a\textbackslash{}b"
    )


@pytest.mark.parametrize("name", ["=1+1", "+1", "-run", "@SUM(A1)", "\tx"])
def test_csv_holds_no_formula(name):
    rows = list(csv.reader(io.StringIO(table(name).render("csv"))))
    assert rows[1][0] == f"'{name}"


def test_csv_has_exact_values_and_empty_cells():
    rows = list(csv.reader(io.StringIO(table('a "quoted", name').render("csv"))))
    assert rows[0] == ["method", "seen α₀ = 0", "seen α₀ = 0.1", "seen t = 2"]
    assert rows[1] == ['a "quoted", name', "0.125", "", "1"]
    assert rows[2][2] == "0.333333"


def test_mistaken_calls():
    with pytest.raises(ValueError, match="format: expected one of text, markdown, latex, csv"):
        table().render("html")
    with pytest.raises(ValueError, match="expected rows of 4 cells, got 1"):
        Table(columns=COLUMNS, rows=((Cell("a"),),))


def test_a_csv_cell_is_no_formula():
    table = Table(
        columns=(Column("name", words=True), Column("x")), rows=((Cell("=1+1"), Cell("")),)
    )
    assert table.render("csv").splitlines()[1] == "'=1+1,"
