"""`cpr-wrap certify`: what bounds prove about a model, without any attack."""

from __future__ import annotations

from typing import Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import (
    calibrated,
    load_images,
    load_model,
    pick_device,
    several_processes,
    threat_eps,
    validation_images,
    warn_of_open_rule,
)
from cpr_wrap.cli._run import mention
from cpr_wrap.cli.options import (
    Address,
    Common,
    DataOptions,
    Eps,
    ModelOptions,
    Validation,
    number,
    option,
)


def certify(
    address: Address,
    *,
    eps: Eps = None,
    calibrate: Annotated[
        float | None, number("Calibrate first: reject this share of correctly classified images.")
    ] = None,
    validation: Validation = None,
    crown: Annotated[
        bool, typer.Option("--crown/--no-crown", help="Use CROWN in addition to interval bounds.")
    ] = True,
    per_image: Annotated[
        bool, option("Also print the radii of each image.", "--per-image")
    ] = False,
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Prove a lower bound on a model's robustness, in Linf.

    No attack can find an accepted mistake or a rejection within the proven radii. `cpr-wrap curve
    --certify` draws this bound below the curve that attacks give.

    Example: cpr-wrap certify bundled:mnist-compact-ibp --eps 0.3
    """
    device = pick_device(common.device)
    with several_processes(device) as leads:
        loaded = load_model(address, model, device)
        images, budget = load_images(data, loaded.facts), threat_eps(eps, loaded.facts)
        selective = loaded.model
        if calibrate is not None:
            chosen = validation_images(data, loaded.facts, validation, images)
            selective, _ = calibrated(selective, calibrate, chosen)
        warn_of_open_rule(selective)
        mention(f"{address}, {selective.rule.describe()}, {len(images)} images, eps {budget:g}")
        from cpr_wrap.evaluation import certify as prove
        from cpr_wrap.metrics import PAPER_ALPHAS

        numbers = images.indices
        found = prove(
            selective,
            images.images,
            images.labels,
            budget,
            crown=crown,
            indices=numbers,
            progress=True,
        )
        if not leads:
            return
        rows = [
            {"index": number, **row}
            for number, row in zip(found.index.tolist(), found.to_rows(), strict=True)
        ]
        if common.as_json:
            _show.print_json(found.summary() | ({"per_image": rows} if per_image else {}))
            return
        _show.print_certificate(found, PAPER_ALPHAS)
        for row in rows if per_image else ():
            typer.echo("  ".join(f"{key} {value}" for key, value in row.items()))
