"""`cpr-wrap predict`: a label for each image file, or REJECT and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._explain import explain
from cpr_wrap.cli._load import load_model, pick_device, warn_of_open_rule
from cpr_wrap.cli.options import Address, Common, ModelOptions, option

if TYPE_CHECKING:
    from cpr_wrap.cli._explain import Answer


def predict(
    address: Address,
    path: Annotated[
        Path, typer.Argument(help="An image file, or a folder of them.", show_default=False)
    ],
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    class_names: Annotated[
        Path | None, option("A text file with the names of the classes, one per line.")
    ] = None,
    model: ModelOptions,
    common: Common,
) -> None:
    """Classify image files, or reject them and say why.

    Images are resized to the model's size, with its own resize and crop if it has one. For a
    rejection by cpr, the reason names the class that is predicted at T(x), and its margin there.

    Example: cpr-wrap predict bundled:mnist-compact-at digits/ --radius 0.15
    """
    from cpr_wrap.cli._pictures import pictures_at, read_pictures

    files = pictures_at(path)
    names = None if class_names is None else class_names.read_text().splitlines()
    device = pick_device(common.device)
    loaded = load_model(address, model, device)
    warn_of_open_rule(loaded.model)
    answers: list[Answer] = []
    for batch, images in read_pictures(files, loaded.facts, batch_size):
        found = explain(loaded.model, images.to(device), names)
        answers.extend(found)
        if not common.as_json:
            for file, answer in zip(batch, found, strict=True):
                typer.echo(f"{file}\t{answer.sentence(names)}")
    if common.as_json:
        _show.print_json([_row(*pair, names) for pair in zip(files, answers, strict=True)])


def _row(file: Path, answer: Answer, names: list[str] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"file": file, **_show.plain(answer)}
    if names is not None:
        row["name"] = None if answer.label < 0 else names[answer.label]
    return row
