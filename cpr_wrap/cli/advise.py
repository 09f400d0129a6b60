"""`cpr-wrap advise`: which rule, and which radius or threshold, for this network and cost."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import (
    load_images,
    pick_device,
    threat_eps,
    threat_norm,
)
from cpr_wrap.cli._run import mention, resumable
from cpr_wrap.cli.options import (
    Address,
    BatchSize,
    Common,
    DataOptions,
    Eps,
    ModelOptions,
    Overwrite,
    Seed,
    check_free,
    fractions,
    number,
    option,
    whole_numbers,
)

if TYPE_CHECKING:
    from cpr_wrap.data import ImageData
    from cpr_wrap.evaluation import Advice
    from cpr_wrap.metrics.losses import LossLike
    from cpr_wrap.zoo import ZooModel

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def seconds(text: str) -> float:
    """Read a time like `20ms` or `0.5s`.

    Example:
        >>> seconds("20ms")
        0.02
    """
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(us|ms|s)", str(text).strip())
    if found is None:
        raise typer.BadParameter(f"expected a time like 20ms or 0.5s, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def read_cost(text: str) -> LossLike:
    """Read a cost: `step:0.05`, `ramp:2`, a table, or a function `own.py:l` of the distance."""
    from cpr_wrap._address import resolve
    from cpr_wrap.metrics.losses import LOSS_KINDS, parse_loss

    kind, colon, name = text.partition(":")
    if kind in LOSS_KINDS or not colon:
        return parse_loss(text)
    module = ".".join(Path(kind).with_suffix("").parts) if kind.endswith(".py") else kind
    found: LossLike = resolve(f"{module}:{name}")
    return found


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """What to try, and what is allowed."""

    cost: Annotated[
        str,
        typer.Option(help="step:ALPHA, ramp:T, table:A=LOSS,… or own.py:function."),
    ] = "step:0.05"
    validation: Annotated[
        str | None,
        option("Images for the choice; by default the validation part of the data set."),
    ] = None
    max_latency: Annotated[
        float | None,
        option("Maximum time per prediction, e.g. 20ms.", parser=seconds, metavar="TIME"),
    ] = None
    max_clean_rejection: Annotated[
        float | None, number("Maximum share of clean images rejected, e.g. 0.02.")
    ] = None
    radii: Annotated[str | None, option("Radii to try, e.g. 0.05,0.1 or 1/255,2/255.")] = None
    tried_steps: Annotated[str | None, option("Steps of cpr to try, e.g. 5,20.", "--try-steps")] = (
        None
    )
    thresholds: Annotated[str | None, option("Thresholds of confidence to try.")] = None
    budget: Annotated[str, typer.Option(help="Budget for the candidates that can still win.")] = (
        "standard"
    )
    screening: Annotated[str, typer.Option(help="Budget for every candidate.")] = "quick"
    seed: Seed = 0
    batch_size: BatchSize = None
    store: Annotated[Path | None, option("Folder for finished work, to resume from.")] = None
    figure: Annotated[Path | None, option("Write the figure: .svg, .png or .pdf.")] = None
    table: Annotated[Path | None, option("Write the table as Markdown.")] = None
    overwrite: Overwrite = False


def advise(
    address: Address,
    *,
    eps: Eps = None,
    model: ModelOptions,
    data: DataOptions,
    advice: AdviceOptions,
    common: Common,
) -> None:
    """Find the rule and setting that lose least on a network, for your cost of rejection.

    The choice is made on validation images and reported on others. The model's own rule is one of
    the candidates; --rule and its settings replace it.

    Example: cpr-wrap advise bundled:mnist-compact-at --eps 0.3 --cost ramp:2 --num 60
    --max-clean-rejection 0.05
    """
    from cpr_wrap.cli._load import load_model
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation import advise as advise_on
    from cpr_wrap.report.plots import check_suffix

    cost, settings = read_cost(advice.cost), _candidates(advice)
    for file in filter(None, (advice.figure, advice.table)):
        check_free(file, advice.overwrite)
    if advice.figure is not None:
        check_suffix(advice.figure)
    loaded = load_model(address, model, pick_device(common.device))
    images, validation = _both(data, loaded.facts, advice.validation)
    kept = "nothing is saved without --store" if advice.store is None else f"see {advice.store}"
    with resumable(kept), busy("advising"):
        found = advise_on(
            loaded.model,
            images.images,
            images.labels,
            threat_eps(eps, loaded.facts),
            cost,
            validation=None if validation is None else (validation.images, validation.labels),
            budget=advice.budget,
            screening=advice.screening,
            norm=threat_norm(model, loaded.facts),
            max_latency=advice.max_latency,
            max_clean_rejection=advice.max_clean_rejection,
            seed=advice.seed,
            batch_size=advice.batch_size,
            store=advice.store,
            progress=mention,
            **settings,
        )
    _show_advice(found, advice, common)


def _candidates(advice: AdviceOptions) -> dict[str, Any]:
    """What to try, as typed."""
    typed = {
        "radii": advice.radii and fractions(advice.radii),
        "steps": advice.tried_steps and whole_numbers(advice.tried_steps),
        "thresholds": advice.thresholds and fractions(advice.thresholds),
    }
    return {name: value for name, value in typed.items() if value}


def _both(
    data: DataOptions, facts: ZooModel, validation: str | None
) -> tuple[ImageData, ImageData | None]:
    """Images to report on, and others to choose on; None where every second one is taken."""
    from cpr_wrap.data import DATASETS

    images = load_images(data, facts)
    if validation is None and (data.dataset or facts.dataset) not in DATASETS:
        return images, None
    chosen = replace(data, dataset=validation or data.dataset)
    return images, load_images(chosen, facts, "validation")


def _show_advice(found: Advice, options: AdviceOptions, common: Common) -> None:
    from cpr_wrap._files import write_atomically
    from cpr_wrap.report.advice import advice_figure, advice_table
    from cpr_wrap.report.plots import write_figure

    table = advice_table(found)
    if options.table is not None:
        write_atomically(options.table, table.render("markdown") + "\n")
    if options.figure is not None:
        write_figure(advice_figure(found), options.figure)
    if common.as_json:
        head = {"advice": str(found), "cost": found.cost.name, "eps": found.eps}
        _show.print_json(head | {"notes": found.notes, "candidates": found.rows()})
        return
    typer.echo(f"{table.render('text')}\n\n{found}")
    if found.gain is not None:
        typer.echo(f"without rejection the loss is {found.gain} more there")
    for note in found.notes:
        typer.echo(f"note: {note}")
