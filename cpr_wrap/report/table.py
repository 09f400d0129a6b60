"""A table of results and its renderings: text, Markdown, LaTeX, CSV and rich."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeAlias

from cpr_wrap.report.wording import MISSING

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_TEXT_WIDTH = 88


@dataclass(frozen=True)
class Cell:
    """One entry.

    Attributes:
        text: As shown to people.
        value: As written for machines; the text where None.
        best: Is it the best of its column?
    """

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Column:
    """A heading.

    Attributes:
        title: The heading itself.
        group: A heading above it, shared with neighbours; nothing for none.
        above: A heading above that.
        alone: The heading where there is only one line for it; the title if not given.
        words: Is it a column of words, set to the left?
    """

    title: str
    group: str = ""
    above: str = ""
    alone: str = ""
    words: bool = False

    @property
    def levels(self) -> tuple[str, str, str]:
        """The headings from the top down."""
        return (self.above, self.group, self.title)

    @property
    def flat(self) -> str:
        """All headings in one line."""
        return self.alone or self.title


Row: TypeAlias = "tuple[Cell, ...]"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows.

    Attributes:
        columns: The headings.
        rows: One cell for each column.
        title: What the numbers are.
        caption: What they are not.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"expected rows of {len(self.columns)} cells, got {len(row)}")

    def render(self, format: str = "text") -> str:  # noqa: A002 - the name people expect
        """The table as text, without a newline at its end.

        Args:
            format: `text`, `markdown`, `latex` or `csv`.
        """
        if format not in _WRITERS:
            raise ValueError(f"format: expected one of {', '.join(_WRITERS)}, got {format!r}")
        return _WRITERS[format](self)

    def rich(self) -> RichTable:
        """The table for a rich console; texts are taken as they are, not as rich's markup."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=Text(self.title) if self.title else None,
            caption=Text(self.caption) if self.caption else None,
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for place, column in enumerate(self.columns):
            longest = max((len(row[place].text) for row in self.rows), default=0)
            side: Literal["left", "right"] = "left" if column.words else "right"
            # Headings may wrap, numbers must not.
            table.add_column(Text(column.flat), justify=side, min_width=longest)
        for row in self.rows:
            table.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
        return table


def mark_best(cells: Sequence[Cell], *, smallest: bool = True) -> list[Cell]:
    """Mark the best of a column; ties are judged, and so shared, by what people read.

    A column with fewer than two numbers has no best.
    """
    values = [cell.value for cell in cells if cell.value is not None and cell.text != MISSING]
    if len(values) < 2:
        return list(cells)
    best = min(values) if smallest else max(values)
    shown = {cell.text for cell in cells if cell.value == best}
    return [Cell(c.text, c.value, c.value is not None and c.text in shown) for c in cells]


def _text(table: Table) -> str:
    head = [column.levels for column in table.columns]
    used = [level for level in range(3) if any(levels[level] for levels in head)]
    lines = [[levels[level] for levels in head] for level in used]
    starred = [any(row[place].best for row in table.rows) for place in range(len(head))]
    # Others get a space instead, so that digits stay below digits.
    body = [
        [c.text + ("*" if c.best else " " * star) for c, star in zip(row, starred, strict=True)]
        for row in table.rows
    ]
    # A group's heading stands once, over its first column, and may run over its neighbours.
    widths = [
        max(len(line[place]) for line in [lines[-1], *body]) for place in range(len(table.columns))
    ]
    words = [column.words for column in table.columns]
    for _ in range(2):  # a long heading widens its columns the first time
        rendered = [
            _spanning(line, head, level, widths) for line, level in zip(lines, used, strict=True)
        ]
    rendered[-1] = _aligned(lines[-1], widths, words)
    rule = "  ".join("-" * width for width in widths)
    out = [*rendered, rule, *(_aligned(line, widths, words) for line in body)]
    if any(cell.best for row in table.rows for cell in row):
        out.append("* best")
    if table.caption:
        out += ["", *textwrap.wrap(table.caption, _TEXT_WIDTH)]
    return "\n".join([table.title, "", *out] if table.title else out)


def _aligned(cells: Sequence[str], widths: Sequence[int], words: Sequence[bool]) -> str:
    sides = zip(cells, widths, words, strict=True)
    return "  ".join(c.ljust(w) if left else c.rjust(w) for c, w, left in sides).rstrip()


def _spanning(
    line: Sequence[str], head: Sequence[tuple[str, ...]], level: int, widths: list[int]
) -> str:
    pieces = []
    for _, span in _spans(head, level):
        room = sum(widths[place] for place in span) + 2 * (len(span) - 1)
        text = line[span[0]]
        if len(text) > room:  # widen the span's last column rather than cut the heading
            widths[span[-1]] += len(text) - room
            room = len(text)
        pieces.append(text.center(room) if len(span) > 1 else text.ljust(room))
    return "  ".join(pieces).rstrip()


def _spans(head: Sequence[tuple[str, ...]], level: int) -> list[tuple[str, list[int]]]:
    """Neighbours that share their headings down to a level."""
    keyed = groupby(range(len(head)), key=lambda place: _key(head, place, level))
    return [(key[level], list(places)) for key, places in keyed]


def _key(head: Sequence[tuple[str, ...]], place: int, level: int) -> tuple[str, ...]:
    levels = head[place][: level + 1]
    # Columns without a heading at this level stand alone.
    return levels if levels[level] else (*levels, str(place))


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    marks = [":--" if column.words else "--:" for column in table.columns]
    body = [[f"**{c.text}**" if c.best else c.text for c in row] for row in table.rows]
    lines = [line([column.flat for column in table.columns]), "|" + "|".join(marks) + "|"]
    lines += [line(row) for row in body]
    around = [[table.title], lines, [table.caption]]
    return "\n\n".join("\n".join(block) for block in around if any(block))


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
    head = [column.levels for column in table.columns]
    lines = [r"\begin{tabular}{" + "".join("l" if c.words else "c" for c in table.columns) + "}"]
    lines.append(r"\toprule")
    for level in range(3):
        if level < 2 and not any(levels[level] for levels in head):
            continue
        lines += _latex_heading(head, level)
    lines.append(r"\midrule")
    for row in table.rows:
        cells = [latex_text(cell.text) for cell in row]
        bold = [rf"\textbf{{{t}}}" if c.best else t for c, t in zip(row, cells, strict=True)]
        lines.append(" & ".join(bold) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [f"% {text}" for text in (table.title, table.caption) if text]
    return "\n".join([*notes, *lines])


def _latex_heading(head: Sequence[tuple[str, ...]], level: int) -> list[str]:
    cells, rules = [], []
    for text, span in _spans(head, level):
        if len(span) == 1 or level == 2:
            cells += [latex_text(text)] * len(span)
            continue
        cells.append(rf"\multicolumn{{{len(span)}}}{{c}}{{{latex_text(text)}}}")
        rules.append(rf"\cmidrule(lr){{{span[0] + 1}-{span[-1] + 1}}}")
    return [" & ".join(cells) + r" \\", *(["".join(rules)] if rules else [])]


def _csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.flat for column in table.columns])
    for row in table.rows:
        writer.writerow([_plain(cell) for cell in row])
    return out.getvalue().rstrip("\n")


def _plain(cell: Cell) -> str:
    if cell.value is not None:
        return f"{cell.value:.6g}"
    return "" if cell.text == MISSING else cell.text


_WRITERS: dict[str, Callable[[Table], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
}
