"""`cpr-wrap verify`: does a result folder hold what it says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import pick_device
from cpr_wrap.cli._run import CHECK_FAILED
from cpr_wrap.cli.options import MODEL, Common, ModelDir, NetworkName, option

Folder = Annotated[
    Path, typer.Argument(help="A result folder, as `cpr-wrap curve` writes it.", show_default=False)
]


def verify(
    folder: Folder,
    *,
    model: Annotated[
        str | None, option("The model, if not at the recorded address.", panel=MODEL)
    ] = None,
    model_dir: ModelDir = None,
    network: NetworkName = None,
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

    options: dict[str, Any] = {"address": model, "model_dir": model_dir, "network": network}
    with busy("verifying"):
        answer = verify_result(folder, device=pick_device(common.device), **options)
    if common.as_json:
        _show.print_json({"holds": answer.holds} | _show.plain(answer))
    else:
        for problem in answer.problems:
            typer.echo(problem)
        end = "everything holds" if answer.holds else f"{len(answer.problems)} do not hold"
        typer.echo(f"{answer.checked} recorded inputs checked: {end}")
    if not answer.holds:
        raise typer.Exit(CHECK_FAILED)
