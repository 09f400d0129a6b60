"""`cpr-wrap verify`: does a result folder hold what it says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import pick_device
from cpr_wrap.cli.options import MODEL, Common, option

Folder = Annotated[
    Path, typer.Argument(help="A result folder, as `cpr-wrap curve` writes it.", show_default=False)
]


def verify(
    folder: Folder,
    *,
    model: Annotated[
        str | None, option("The model, if not at the recorded address.", panel=MODEL)
    ] = None,
    model_dir: Annotated[Path | None, option("Where weights are.", panel=MODEL)] = None,
    network: Annotated[str | None, option("Architecture behind local:FILE.", panel=MODEL)] = None,
    common: Common,
) -> None:
    """Re-check every recorded adversarial input against the model, without the engine.

    Exit code 1 if anything does not hold.

    Example: cpr-wrap verify runs/at
    """
    from cpr_wrap.evaluation import load_result, verify_result
    from cpr_wrap.selective import rule_from_config
    from cpr_wrap.zoo import load

    options = {"model_dir": model_dir, "device": pick_device(common.device), "network": network}
    given = None
    if model is not None:
        rule = rule_from_config(load_result(folder).details["settings"]["rule"])
        given = load(model, rule=rule, **options)  # type: ignore[arg-type]
    answer = verify_result(folder, given, **({} if given else options))
    if common.as_json:
        _show.print_json({"holds": answer.holds} | _show.plain(answer))
    else:
        for problem in answer.problems:
            typer.echo(problem)
        end = "everything holds" if answer.holds else f"{len(answer.problems)} do not hold"
        typer.echo(f"{answer.checked} recorded inputs checked: {end}")
    if not answer.holds:
        raise typer.Exit(1)
