"""`cpr-wrap compare`: several runs, ranked where they can be compared."""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli.options import Common, Overwrite, check_free, option

if TYPE_CHECKING:
    from cpr_wrap.metrics import RobustnessCurve

Folders = Annotated[
    list[Path],
    typer.Argument(help="Result folders, folders of them, or patterns.", show_default=False),
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
    loss: Annotated[
        list[str] | None, option("A rejection loss, e.g. step:0.1; repeatable. By default two.")
    ] = None,
    full: Annotated[bool, option("All of the paper's losses.", "--full")] = False,
    traditional: Annotated[
        bool, option("Clean figures and robust accuracy with detection instead.", "--traditional")
    ] = False,
    out: Annotated[Path | None, option("Write the table to this file instead.")] = None,
    overwrite: Overwrite = False,
    common: Common,
) -> None:
    """Print total robust losses of several runs side by side.

    Only runs with the same images, threat model, budget and engine are ranked together; others get
    their own tables. Nothing is recomputed, so --device has no effect.

    Example: cpr-wrap compare runs/at runs/trades --loss step:0.05 --format latex
    """
    from cpr_wrap._files import write_atomically
    from cpr_wrap.evaluation import results
    from cpr_wrap.metrics import PAPER_LOSSES, parse_loss
    from cpr_wrap.report.tables import RANKED, ranked_rows, ranking
    from cpr_wrap.report.tables import traditional as traditional_table

    if out is not None:
        check_free(out, overwrite)
    losses = PAPER_LOSSES if full else tuple(map(parse_loss, loss or ())) or RANKED
    runs = list(results(folders).folders)
    if traditional and not common.as_json:
        text = traditional_table(runs).render(format.value)
    elif common.as_json or format is FormatName.csv:
        rows = ranked_rows(runs, losses)
        if common.as_json:
            _show.print_json(rows)
            return
        text = table_csv(rows)
    else:
        text = "\n\n".join(table.render(format.value) for table, _ in ranking(runs, losses))
    if out is None:
        typer.echo(text)
    else:
        write_atomically(out, text + "\n")
        typer.echo(f"written to {out}")


def show(curves: Sequence[RobustnessCurve]) -> None:
    """Print curves as the tables of `compare`."""
    from cpr_wrap.report.tables import ranking

    typer.echo("\n\n".join(table.render("text") for table, _ in ranking(list(curves))))


def table_csv(rows: list[dict[str, Any]]) -> str:
    """Rows with the same keys as CSV, without a newline at its end."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")
