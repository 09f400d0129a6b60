"""`cpr-wrap compare`: several runs in the layout of the paper's first table."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli.options import Common, option

Folders = Annotated[
    list[Path], typer.Argument(help="Result folders, one a run.", show_default=False)
]


class FormatName(str, enum.Enum):
    """How a table is written."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def compare(
    folders: Folders,
    *,
    format: Annotated[  # noqa: A002 - the name people expect
        FormatName, typer.Option(help="How to write the table.")
    ] = FormatName.text,
    full: Annotated[
        bool, option("All of the paper's losses, not only Table 1's.", "--full")
    ] = False,
    traditional: Annotated[
        bool, option("Clean figures and robust accuracy with detection instead.", "--traditional")
    ] = False,
    out: Annotated[Path | None, option("Write the table to this file instead.")] = None,
    common: Common,
) -> None:
    """Print total robust losses of several runs side by side, as in the paper's Table 1.

    Nothing is computed anew: --device has no effect here.

    Example: cpr-wrap compare runs/at runs/trades --format latex
    """
    from cpr_wrap.report import tables

    runs = list(folders)
    table = tables.traditional(runs) if traditional else tables.comparison(runs, full=full)
    if common.as_json:
        columns = [column.flat for column in table.columns]
        rows = [[c.text if c.value is None else c.value for c in row] for row in table.rows]
        _show.print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    text = table.render(format.value)
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text + "\n")
        typer.echo(f"written to {out}")
