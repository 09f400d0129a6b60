"""`cpr-wrap merge`, `verify`, `report` and `compare`: what result folders hold."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer

from cpr_wrap.cli import _show, options
from cpr_wrap.cli._load import pick_device
from cpr_wrap.cli._run import CHECK_FAILED
from cpr_wrap.cli.options import MODEL, Common, argument, check_free, option

_folders = partial(argument, "Result folders, folders of them, or patterns.")


def merge(
    folders: list[Path] = _folders(),
    *,
    out: Path = options.required("The folder to write."),
    overwrite: bool = options.overwrite(),
    eps: float | None = options.eps(),
    name: str | None = option("Name of the merged run."),
    common: Common,
) -> None:
    """Join runs of the same model and images: each image keeps the worst that any run found.

    Points found at a smaller eps count at a larger one. Check the merged run with `cpr-wrap
    verify`, like any other. Nothing is recomputed, so --device has no effect.

    Example: cpr-wrap merge runs/mine runs/theirs --out runs/both
    """
    from cpr_wrap.evaluation import load_result, merge_results, save_result
    from cpr_wrap.evaluation.result import RESULT, result_folders

    check_free(out / RESULT, overwrite)
    folders = result_folders(folders)
    curves = [load_result(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    joined = merge_results(curves, eps=eps, names=names)
    if name is not None:
        joined = replace(joined, about=replace(joined.about, name=name))
    alone = [curve.accuracy_at(0.0) for curve in curves if curve.eps <= joined.eps]
    folder = save_result(joined, out)
    if common.as_json:
        _show.print_json({"folder": folder, **joined.summary()})
        return
    _show.print_curve(joined)
    lowest = f", the lowest of the runs alone {_show.percent(min(alone))}" if alone else ""
    typer.echo(f"robustness at alpha 0: {_show.percent(joined.accuracy_at(0.0))}{lowest}")
    typer.echo(f"written to {folder}; next: cpr-wrap verify {folder}")


def verify(
    folder: Path = argument("A result folder, as `cpr-wrap curve` writes it."),
    *,
    model: str | None = option("The model, if not at the recorded address.", rich_help_panel=MODEL),
    model_dir: Path | None = options.weights_folder(),
    network: str | None = options.architecture(),
    common: Common,
) -> None:
    """Check everything in a result folder again, without the engine.

    The model judges every recorded input again, and figures, records and files are compared with
    each other. Your own code is found by its recorded address in the current folder; elsewhere,
    pass --network and --import. The exit code is 3 if a check fails.

    Example: cpr-wrap verify runs/at
    """
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation import verify_result

    where: dict[str, Any] = {"address": model, "model_dir": model_dir, "network": network}
    with busy("verifying"):
        found = verify_result(folder, device=pick_device(common.device), **where)
    end = "everything holds" if found.holds else f"{len(found.problems)} do not hold"
    lines = (*found.problems, f"{found.checked} recorded inputs checked: {end}")
    _show.answer(common, {"holds": found.holds} | _show.plain(found), *lines)
    if not found.holds:
        raise typer.Exit(CHECK_FAILED)


def report(
    folders: list[Path] = _folders(),
    *,
    out: Path = option("The HTML file to write.", default=Path("report.html")),
    title: str | None = option("Heading of the report."),
    figure: Path | None = option("Also draw the curves for a paper: a .png, .svg or .pdf file."),
    robustbench: Path | None = option(
        "Also write RobustBench's model_info and adversarial images to this folder."
    ),
    overwrite: bool = options.overwrite(),
    common: Common,
) -> None:
    """Write runs as one self-contained HTML file: curves, losses, pictures, settings.

    Nothing is recomputed, so --device has no effect.

    Example: cpr-wrap report runs/at runs/trades --out report.html --figure curves.svg
    """
    from cpr_wrap import report as reports
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation.result import result_folders
    from cpr_wrap.report.export import info_file

    runs = [reports.Run.load(folder) for folder in result_folders(folders)]
    infos = [] if robustbench is None else [info_file(run, robustbench) for run in runs]
    for file in filter(None, (out, figure, *infos)):
        check_free(file, overwrite)
    # The figure first: a format that nobody can draw leaves no half of the work behind.
    with busy("drawing"):
        if figure is not None:
            reports.write_figure(reports.curve_figure(runs), figure)
        written = [reports.write_report(runs, out, title), *([figure] if figure else [])]
    if robustbench is not None:
        for run in runs:
            info = reports.write_model_info(run, robustbench)
            written += [info, reports.write_adversarial_images(run, info.with_suffix(".pt"))]
    _show.answer(common, {"written": written}, *(f"written to {path}" for path in written))


def compare(
    folders: list[Path] = _folders(),
    *,
    format: Literal["text", "markdown", "latex", "csv"] = option(  # noqa: A002 - as expected
        "How to write the table.", default="text"
    ),
    loss: list[str] | None = option("A rejection loss, e.g. step:0.1; repeatable. By default two."),
    full: bool = option("All of the paper's losses.", default=False),
    traditional: bool = option(
        "Clean figures and robust accuracy with detection instead.", default=False
    ),
    out: Path | None = option("Write the table to this file instead."),
    overwrite: bool = options.overwrite(),
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
    if common.as_json:
        _show.print_json(ranked_rows(runs, losses))
        return
    if traditional:
        text = traditional_table(runs).render(format)
    elif format == "csv":
        text = table_csv(ranked_rows(runs, losses))
    else:
        text = "\n\n".join(table.render(format) for table, _ in ranking(runs, losses))
    if out is None:
        typer.echo(text)
    else:
        write_atomically(out, text + "\n")
        typer.echo(f"written to {out}")


def table_csv(rows: list[dict[str, Any]]) -> str:
    """Rows with the same keys as CSV, without a newline at its end."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")
