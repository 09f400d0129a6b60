"""`cpr-wrap bench`: how much of the machine an evaluation uses."""

from __future__ import annotations

from typing import Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import load_images, load_model, pick_device, threat_eps
from cpr_wrap.cli.options import Common, DataOptions, Eps, ModelOptions

_DEFAULT = "bundled:mnist-compact-at"


def bench(
    address: Annotated[str, typer.Argument(help="A model.")] = _DEFAULT,
    *,
    eps: Eps = None,
    budget: Annotated[str, typer.Option(help="quick, standard, paper or published.")] = "quick",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in a batch.")] = 128,
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Measure bare passes, one prediction, and a whole evaluation, as ratios in one run.

    The bare time of an evaluation is its forwards and backwards at the speed of the network alone.

    Example: cpr-wrap bench bundled:mnist-compact-at --num 100
    """
    from cpr_wrap.cli._timing import measure

    loaded = load_model(address, model, pick_device(common.device))
    images = load_images(data, loaded.facts)
    figures = measure(
        loaded.model, images, threat_eps(eps, loaded.facts), budget=budget, batch_size=batch_size
    )
    if common.as_json:
        _show.print_json({"model": address, "rule": loaded.model.rule, **_show.plain(figures)})
        return
    typer.echo(f"{address}, {_show.describe_rule(loaded.model.rule)}, batches of {batch_size}")
    _show.print_list(
        "measured",
        {
            "forward": f"{1e6 * figures.forward:,.0f} µs an image",
            "input gradient": f"{1e6 * figures.backward:,.0f} µs an image, beside its forward",
            "prediction": f"{1e6 * figures.prediction:,.0f} µs an image, "
            f"{figures.prediction_ratio:.2f} times its bare passes",
            f"budget {budget}": f"{figures.passes_per_image:,.0f} passes an image, "
            f"{_show.duration(figures.seconds)} for {figures.images} images",
            "engine efficiency": f"{figures.efficiency:.2f} (bare time / wall time)",
        },
    )
