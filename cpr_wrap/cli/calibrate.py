"""`cpr-wrap calibrate`: choose how much a model may reject."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import calibrated, load_model, pick_device
from cpr_wrap.cli.options import Address, Common, DataOptions, ModelOptions, fraction, option


def calibrate(
    address: Address,
    *,
    reject_rate: Annotated[
        float,
        typer.Option(
            parser=fraction, metavar="NUMBER", help="Share of right answers that may be rejected."
        ),
    ] = 0.01,
    out: Annotated[Path | None, option("Save the calibrated model to this folder.")] = None,
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Set a rule so that it rejects a share of the correctly classified validation images.

    A score gets a threshold; cpr gets a radius.

    Example: cpr-wrap calibrate bundled:mnist-compact-at --reject-rate 0.01 --out models/at
    """
    loaded = load_model(address, model, pick_device(common.device))
    selective, record = calibrated(loaded.model, reject_rate, data, loaded.facts)
    folder = None if out is None else selective.save(out)
    if common.as_json:
        _show.print_json({"model": address, "folder": folder} | _show.plain(record))
        return
    typer.echo(f"before: {_show.describe_rule(record.before)}")
    typer.echo(f"after:  {_show.describe_rule(record.after)}")
    rate, wanted, low, high, overall = (
        _show.percent(share)
        for share in (
            record.measured_rate,
            record.reject_rate,
            record.interval.low,
            record.interval.high,
            record.overall_rate,
        )
    )
    typer.echo(
        f"rejects {record.num_rejected} of {record.num_correct} correctly classified images, "
        f"{rate} (asked: {wanted}; on new images {low} to {high}), and {overall} of all "
        f"{record.num_images}"
    )
    if record.note:
        typer.echo(f"note: {record.note}")
    if folder is not None:
        typer.echo(f"saved to {folder}; load it as local:{folder}")
