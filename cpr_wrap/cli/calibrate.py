"""`cpr-wrap calibrate`: choose how much a model may reject."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import calibrated, load_images, load_model, pick_device
from cpr_wrap.cli.options import (
    Address,
    Common,
    DataOptions,
    ModelOptions,
    Overwrite,
    check_free,
    fraction,
    option,
    own_code,
)


def calibrate(
    address: Address,
    *,
    reject_rate: Annotated[
        float,
        typer.Option(
            parser=fraction,
            metavar="NUMBER",
            help="Share of correctly classified images to reject.",
        ),
    ] = 0.01,
    out: Annotated[Path | None, option("Save the calibrated model to this folder.")] = None,
    overwrite: Overwrite = False,
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Set a rule so that it rejects a share of the correctly classified validation images.

    For rules with a score it sets the threshold, for cpr the radius. It uses the validation part of
    a known data set, and all of your own images.

    Example: cpr-wrap calibrate bundled:mnist-compact-at --reject-rate 0.01 --out models/at
    """
    if out is not None:
        check_free(out / "config.json", overwrite)
    loaded = load_model(address, model, pick_device(common.device))
    chosen = data.start is not None or data.indices is not None
    images = load_images(data, loaded.facts, None if chosen else "validation")
    selective, record = calibrated(loaded.model, reject_rate, images)
    folder = None if out is None else selective.save(out)
    if common.as_json:
        _show.print_json({"model": address, "folder": folder} | _show.plain(record))
        return
    typer.echo(_show.calibration_sentence(record))
    if folder is not None:
        typer.echo(f"saved to {folder}; load it as local:{folder}{own_code(model.network)}")
