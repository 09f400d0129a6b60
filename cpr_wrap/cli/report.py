"""`cpr-wrap report`: one HTML file, and pictures and files for others, from result folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli.compare import Folders
from cpr_wrap.cli.options import Common, Overwrite, check_free, option

if TYPE_CHECKING:
    from cpr_wrap.report import Run


def report(
    folders: Folders,
    *,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, option("Heading of the report.")] = None,
    figure: Annotated[
        Path | None, option("Also draw the curves for a paper: a .png, .svg or .pdf file.")
    ] = None,
    robustbench: Annotated[
        Path | None,
        option("Also write RobustBench's model_info and adversarial images to this folder."),
    ] = None,
    overwrite: Overwrite = False,
    common: Common,
) -> None:
    """Write runs as one self-contained HTML file: curves, losses, pictures, settings.

    Nothing is recomputed, so --device has no effect.

    Example: cpr-wrap report runs/at runs/trades --out report.html --figure curves.svg
    """
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation.result import result_folders
    from cpr_wrap.report import Run, curve_figure, write_figure, write_report
    from cpr_wrap.report.export import info_file

    for file in filter(None, (out, figure)):
        check_free(file, overwrite)
    runs = [Run.load(folder) for folder in result_folders(folders)]
    if robustbench is not None:
        for run in runs:
            check_free(info_file(run, robustbench), overwrite)
    # The figure first: a format that nobody can draw leaves no half of the work behind.
    with busy("drawing"):
        drawn = [] if figure is None else [write_figure(curve_figure(runs), figure)]
        written = [write_report(runs, out, title), *drawn]
    if robustbench is not None:
        for run in runs:
            written += _for_robustbench(run, robustbench)
    if common.as_json:
        _show.print_json({"written": written})
        return
    for path in written:
        typer.echo(f"written to {path}")


def _for_robustbench(run: Run, folder: Path) -> list[Path]:
    from cpr_wrap.report import write_adversarial_images, write_model_info

    info = write_model_info(run, folder)
    return [info, write_adversarial_images(run, info.with_suffix(".pt"))]
