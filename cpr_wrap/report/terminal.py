"""Robustness curves drawn in a terminal, in braille dots or in plain ASCII."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import torch

from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report.wording import eps_text, percent

_BRAILLE = 0x2800
# The bit of each of a cell's dots, two across and four down.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_LEAST_WIDTH, _LEAST_HEIGHT = 32, 5
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MARGIN = 6  # columns of the axis on the left, its line included


def draw_terminal(
    curves: RobustnessCurve | Sequence[RobustnessCurve],
    names: Sequence[str] | None = None,
    *,
    width: int = 72,
    height: int = 16,
    ascii: bool = False,  # noqa: A002 - the name people expect
) -> str:
    """Draw robustness over alpha from 0 to 1.

    Several curves carry letters, explained below the drawing.

    Args:
        curves: One or several curves.
        names: Their names, for several curves.
        width: Columns in all, at least 32.
        height: Rows of the plot, at least 5; axis and legend come below.
        ascii: Only ASCII, for terminals without braille; see `draws_braille`.

    Returns:
        Lines without a newline at the end.
    """
    several = [curves] if isinstance(curves, RobustnessCurve) else list(curves)
    names = [f"curve {place + 1}" for place in range(len(several))] if names is None else names
    _check(several, names, width, height)
    columns = width - _MARGIN
    # The last column of cells is alpha = 1; each cell is two dots wide and four dots high.
    fine_x, fine_y = (1, 1) if ascii else (2, 4)
    cells = [[" "] * columns for _ in range(height)]
    levels = [_levels(curve, columns * fine_x, height * fine_y) for curve in several]
    if ascii:
        _plot_ascii(cells, levels)
    else:
        _plot_braille(cells, levels, fine_x, fine_y)
    if len(several) > 1:
        _letter(cells, levels, fine_x, fine_y)
    title = " " * _MARGIN + "robustness with rejection"
    return "\n".join([title, *_framed(cells, ascii=ascii), *_legend(several, names, width, ascii)])


def _legend(
    curves: Sequence[RobustnessCurve], names: Sequence[str], width: int, plain: bool
) -> list[str]:
    alpha, times = ("alpha", "*") if plain else ("α", "·")
    lines = [f"{alpha}: rejecting a point within {alpha} {times} eps is an error"]
    longest = max(map(len, names))
    for letter, curve, name in zip(_LETTERS, curves, names, strict=False):
        ends = f"{percent(curve.accuracy_at(0.0))} at 0, {percent(curve.accuracy_at(1.0))} at 1"
        budget = f"{curve.records.norm} eps = {eps_text(curve.eps)}"
        front = f"{letter}  {name:<{longest}}  " if len(curves) > 1 else ""
        lines.append(f"{front}{budget}: {ends}")
    indent = " " * _MARGIN
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line, width, initial_indent=indent, subsequent_indent=indent + "   "
        )
    ]


def draws_braille(encoding: str | None) -> bool:
    """Can text in some encoding, e.g. `sys.stdout.encoding`, hold the braille drawing?"""
    try:
        "⣿└┤α".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _check(
    curves: Sequence[RobustnessCurve], names: Sequence[str], width: int, height: int
) -> None:
    if not 1 <= len(curves) <= len(_LETTERS):
        raise ValueError(f"expected 1 to {len(_LETTERS)} curves to draw, got {len(curves)}")
    if len(names) != len(curves):
        raise ValueError(f"names: expected {len(curves)}, one a curve, got {len(names)}")
    if width < _LEAST_WIDTH or height < _LEAST_HEIGHT:
        raise ValueError(
            f"expected a drawing of at least {_LEAST_WIDTH} columns and {_LEAST_HEIGHT} rows, "
            f"got {width} and {height}"
        )


def _levels(curve: RobustnessCurve, columns: int, rows: int) -> list[int]:
    """The row of each column's point, counted from the top."""
    alphas = torch.linspace(0, 1, columns, dtype=torch.float64)
    heights = curve.accuracy_at(alphas) * (rows - 1)
    return [rows - 1 - round(height) for height in heights.tolist()]


def _plot_ascii(cells: list[list[str]], levels: list[list[int]]) -> None:
    for row_of in reversed(levels):
        for column, row in enumerate(row_of):
            cells[row][column] = "*"
            for between in range(row_of[max(0, column - 1)] + 1, row):
                cells[between][column] = "|"


def _plot_braille(
    cells: list[list[str]], levels: list[list[int]], fine_x: int, fine_y: int
) -> None:
    bits = [[0] * len(cells[0]) for _ in cells]
    for row_of in levels:
        for x, row in enumerate(row_of):
            # The dots of a fall are joined, so that a step reads as one line.
            for y in range(min(row, row_of[max(0, x - 1)] + 1), row + 1):
                bits[y // fine_y][x // fine_x] |= _DOTS[y % fine_y][x % fine_x]
    for line, row_bits in zip(cells, bits, strict=True):
        for place, value in enumerate(row_bits):
            if value:
                line[place] = chr(_BRAILLE + value)


def _letter(cells: list[list[str]], levels: list[list[int]], fine_x: int, fine_y: int) -> None:
    """Put each curve's letter on it a few times, at places of its own."""
    columns = len(cells[0])
    spacing = max(2 * len(levels), columns // 5)
    for number, row_of in enumerate(levels):
        first = (2 * number + 1) * spacing // (2 * len(levels))
        for column in range(first, columns, spacing):
            cells[row_of[column * fine_x] // fine_y][column] = _LETTERS[number]


def _framed(cells: list[list[str]], *, ascii: bool) -> list[str]:  # noqa: A002
    bar, tick, corner, line, below = "|++-+" if ascii else "│┤└─┬"
    height, columns = len(cells), len(cells[0])
    labels = {round((1 - share) * (height - 1)): share for share in (0, 0.25, 0.5, 0.75, 1)}
    lines = []
    for row, content in enumerate(cells):
        text = f"{100 * labels[row]:.0f}%" if row in labels else ""
        lines.append(f"{text:>{_MARGIN - 1}}{tick if row in labels else bar}" + "".join(content))
    axis, numbers = [line] * columns, [" "] * (columns + _MARGIN)
    for share in (0, 0.25, 0.5, 0.75, 1):
        place = round(share * (columns - 1))
        axis[place] = below
        text = f"{share:g}"
        start = min(_MARGIN + place - len(text) // 2, columns + _MARGIN - len(text))
        numbers[start : start + len(text)] = text
    lines.append(" " * (_MARGIN - 1) + corner + "".join(axis))
    lines.append("".join(numbers).rstrip())
    return [text.rstrip() for text in lines]
