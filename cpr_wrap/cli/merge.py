"""`cpr-wrap merge`: several runs of one model and the same images as one, keeping the worst."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli.compare import Folders
from cpr_wrap.cli.options import Common, Eps, Overwrite, check_free, option


def merge(
    folders: Folders,
    *,
    out: Annotated[Path, option("The folder to write.")],
    overwrite: Overwrite = False,
    eps: Eps = None,
    name: Annotated[str | None, option("Name of the merged run.")] = None,
    common: Common,
) -> None:
    """Join runs of the same model and images: each image keeps the worst that any run found.

    Points found at a smaller eps count at a larger one. Check the merged run with `cpr-wrap
    verify`, like any other. Nothing is recomputed, so --device has no effect.

    Example: cpr-wrap merge runs/mine runs/theirs --out runs/both
    """
    from dataclasses import replace

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
