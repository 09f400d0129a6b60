"""A table of results and its renderings: text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cpr_wrap._text import MISSING

_TEXT_WIDTH = 88


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str  #: What is displayed.
    value: float | None = None  #: The exact value, for CSV and JSON; the text if None.
    best: bool = False  #: Whether it is the best of its column.


@dataclass(frozen=True)
class Column:
    """A column heading."""

    title: str  #: The heading.
    words: bool = False  #: Whether the column holds words, aligned left.


Entries: TypeAlias = "Sequence[Cell | str]"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that can be rendered as text, Markdown, LaTeX or CSV.

    Example:
        >>> from cpr_wrap.report import Cell, Column
        >>> head = (Column("rule", words=True), Column("loss"))
        >>> table = Table(columns=head, rows=((Cell("cpr"), Cell("0.133")),))
        >>> print(table.render("markdown").splitlines()[-1])
        | cpr    |  0.133 |
    """

    columns: tuple[Column, ...]  #: The headings.
    rows: tuple[tuple[Cell, ...], ...]  #: Rows with one cell per column.
    title: str = ""  #: What the numbers are.
    caption: str = ""  #: How to read them.

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"expected rows of {len(self.columns)} cells, got {len(row)}")

    @classmethod
    def of(
        cls, columns: Mapping[str, Entries] | Sequence[tuple[str, Entries]], **texts: str
    ) -> Table:
        """A table of columns by their headings, with a title and a caption; texts are words.

        Columns whose headings may be the same, e.g. the names of functions, are given as pairs.
        """
        heads, cells = [], []
        for title, entries in columns.items() if isinstance(columns, Mapping) else columns:
            heads.append(Column(title, words=all(isinstance(entry, str) for entry in entries)))
            cells.append([Cell(entry) if isinstance(entry, str) else entry for entry in entries])
        return cls(columns=tuple(heads), rows=tuple(zip(*cells, strict=True)), **texts)

    def render(self, format: str = "text") -> str:  # noqa: A002 - the name people expect
        """The table as text, without a newline at its end.

        Args:
            format: `text`, `markdown`, `latex` or `csv`.
        """
        if format not in _WRITERS:
            raise ValueError(f"format: expected one of {', '.join(_WRITERS)}, got {format!r}")
        return _WRITERS[format](self)


def _tabulated(table: Table, style: str, heads: list[str], body: list[list[str]]) -> str:
    from tabulate import tabulate

    sides = ["left" if column.words else "right" for column in table.columns]
    # Texts stay as they are: tabulate would read 0.500 as a number, and cut spaces off.
    drawn: str = tabulate(
        body,
        heads,
        style,
        colalign=sides,
        headersalign=sides,
        disable_numparse=True,
        preserve_whitespace=True,
    )
    return drawn


def _text(table: Table) -> str:
    # A heading takes several lines rather than a wide column; an equation stays in one piece.
    heads = []
    for place, column in enumerate(table.columns):
        room = max([10, *(len(row[place].text) for row in table.rows)])
        words = textwrap.wrap(column.title.replace(" = ", "\0=\0"), room)
        heads.append("\n".join(words).replace("\0", " "))
    starred = [any(row[place].best for row in table.rows) for place in range(len(heads))]
    # Others get a space instead, so that digits stay below digits.
    body = [
        [c.text + ("*" if c.best else " " * star) for c, star in zip(row, starred, strict=True)]
        for row in table.rows
    ]
    lines = _tabulated(table, "simple", heads, body).splitlines()
    out = [line.rstrip() for line in lines] + (["* best"] if any(starred) else [])
    if table.caption:
        out += ["", *textwrap.wrap(table.caption, _TEXT_WIDTH)]
    return "\n".join([*textwrap.wrap(table.title, _TEXT_WIDTH), "", *out] if table.title else out)


def _markdown(table: Table) -> str:
    def cell(text: str) -> str:
        return text.replace("|", "\\|")

    heads = [cell(column.title) for column in table.columns]
    body = [[cell(f"**{c.text}**" if c.best else c.text) for c in row] for row in table.rows]
    blocks = [table.title, _tabulated(table, "pipe", heads, body), table.caption]
    return "\n\n".join(filter(None, blocks))


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "α₀": r"$\alpha_0$",
    "α": r"$\alpha$",
    "ε": r"$\epsilon$",
    "·": r"$\cdot$",
    "–": "--",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_LATEX_SIGNS = re.compile("|".join(re.escape(sign) for sign in _LATEX))


def latex_text(text: str) -> str:
    """Text with LaTeX's own signs escaped and the paper's symbols in mathematics."""
    return _LATEX_SIGNS.sub(lambda found: _LATEX[found[0]], text)


def _latex(table: Table) -> str:
    # By hand: tabulate has no cells that are LaTeX already.
    sides = "".join("l" if column.words else "c" for column in table.columns)
    heads = " & ".join(latex_text(column.title) for column in table.columns)
    lines = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", heads + r" \\"]
    lines.append(r"\midrule")
    for row in table.rows:
        texts = (rf"\textbf{{{latex_text(c.text)}}}" if c.best else latex_text(c.text) for c in row)
        lines.append(" & ".join(texts) + r" \\")
    notes = [f"% {text}" for text in (table.title, table.caption) if text]
    return "\n".join([*notes, *lines, r"\bottomrule", r"\end{tabular}"])


def _csv(table: Table) -> str:
    def plain(cell: Cell) -> str:
        if cell.value is not None:
            return f"{cell.value:.6g}"
        return "" if cell.text == MISSING else _no_formula(cell.text)

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_no_formula(column.title) for column in table.columns])
    writer.writerows([[plain(cell) for cell in row] for row in table.rows])
    return out.getvalue().rstrip("\n")


def _no_formula(text: str) -> str:
    """The text so that no spreadsheet takes it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


_WRITERS: dict[str, Callable[[Table], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
}
