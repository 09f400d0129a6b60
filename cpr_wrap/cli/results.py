"""`cpr-wrap merge`, `verify`, `report` and `compare`: what result folders hold."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import typer

from cpr_wrap import report as reports
from cpr_wrap._files import write_atomically
from cpr_wrap.cli import _show
from cpr_wrap.cli._load import check_free, pick_device
from cpr_wrap.cli._run import CHECK_FAILED, answer, print_json
from cpr_wrap.cli.commands import Compare, Merge, Report, Verify
from cpr_wrap.engine.progress import busy
from cpr_wrap.evaluation import (
    load_result,
    merge_results,
    results,
    save_result,
    verify_result,
)
from cpr_wrap.evaluation.result import RESULT, result_folders
from cpr_wrap.metrics import PAPER_LOSSES, parse_loss
from cpr_wrap.report.export import info_file
from cpr_wrap.report.tables import RANKED


def merge(options: Merge) -> None:
    """Join runs, and write what they found together."""
    check_free(options.out / RESULT, options.overwrite)
    folders = result_folders(options.folders)
    curves = [load_result(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    joined = merge_results(curves, eps=options.eps, names=names)
    if options.name is not None:
        joined = replace(joined, about=replace(joined.about, name=options.name))
    alone = [curve.accuracy_at(0.0) for curve in curves if curve.eps <= joined.eps]
    folder = save_result(joined, options.out)
    if options.as_json:
        print_json({"folder": folder, **joined.summary()})
        return
    _show.print_curve(joined)
    lowest = f", the lowest of the runs alone {_show.percent(min(alone))}" if alone else ""
    typer.echo(f"robustness at alpha 0: {_show.percent(joined.accuracy_at(0.0))}{lowest}")
    typer.echo(f"written to {folder}; next: cpr-wrap verify {folder}")


def verify(options: Verify) -> None:
    """Check a result folder, and name what does not hold."""
    with busy("verifying"):
        found = verify_result(
            options.folder,
            device=pick_device(options.device),
            address=options.model,
            model_dir=options.model_dir,
            network=options.network,
        )
    end = "everything holds" if found.holds else f"{len(found.problems)} do not hold"
    lines = (*found.problems, f"{found.checked} recorded inputs checked: {end}")
    answer(options, {"holds": found.holds, **vars(found)}, *lines)
    if not found.holds:
        raise typer.Exit(CHECK_FAILED)


def report(options: Report) -> None:
    """Write a report, and the files for others if they are wanted."""
    out, figure, robustbench = options.out, options.figure, options.robustbench
    runs = [reports.Run.load(folder) for folder in result_folders(options.folders)]
    infos = [] if robustbench is None else [info_file(run, robustbench) for run in runs]
    for file in filter(None, (out, figure, *infos)):
        check_free(file, options.overwrite)
    # The figure first: a format that nobody can draw leaves no half of the work behind.
    with busy("drawing"):
        if figure is not None:
            reports.write_figure(reports.curve_figure(runs), figure)
        written = [reports.write_report(runs, out, options.title), *([figure] if figure else [])]
    if robustbench is not None:
        for run in runs:
            info = reports.write_model_info(run, robustbench)
            written += [info, reports.write_adversarial_images(run, info.with_suffix(".pt"))]
    answer(options, {"written": written}, *(f"written to {path}" for path in written))


def compare(options: Compare) -> None:
    """Print or write a table of several runs."""
    if options.out is not None:
        check_free(options.out, options.overwrite)
    losses = PAPER_LOSSES if options.full else tuple(map(parse_loss, options.loss or ())) or RANKED
    runs = list(results(options.folders).folders)
    if options.as_json:
        print_json(reports.ranked_rows(runs, losses))
        return
    if options.traditional:
        text = reports.traditional(runs).render(options.format)
    elif options.format == "csv":
        text = table_csv(reports.ranked_rows(runs, losses))
    else:
        tables = reports.ranking(runs, losses)
        text = "\n\n".join(table.render(options.format) for table, _ in tables)
    if options.out is None:
        typer.echo(text)
    else:
        write_atomically(options.out, text + "\n")
        typer.echo(f"written to {options.out}")


def table_csv(rows: list[dict[str, Any]]) -> str:
    """Rows with the same keys as CSV, without a newline at its end."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")
