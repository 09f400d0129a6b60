"""`cpr-wrap advise` and `calibrate`: which rule, and which radius or threshold."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cpr_wrap.cli import _load, _show, options
from cpr_wrap.cli._run import mention, resumable
from cpr_wrap.cli.options import Common, DataOptions, ModelOptions, option

if TYPE_CHECKING:
    from cpr_wrap.data import ImageData
    from cpr_wrap.evaluation import Advice
    from cpr_wrap.metrics.losses import LossLike
    from cpr_wrap.zoo import ZooModel


def seconds(text: str) -> float:
    """Read a time like `20ms` or `0.5s`."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(us|ms|s)", str(text).strip())
    if found is None:
        raise typer.BadParameter(f"expected a time like 20ms or 0.5s, got {text!r}")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]


def read_cost(text: str) -> LossLike:
    """Read a cost: `step:0.05`, `ramp:2`, a table, or a function `own.py:l` of the distance."""
    from cpr_wrap._registry import resolve
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

    cost: str = option(
        "step:ALPHA, ramp:T, table:A=LOSS,… or own.py:function.", default="step:0.05"
    )
    validation: str | None = option(
        "Images for the choice; by default the validation part of the data set."
    )
    max_latency: float | None = option(
        "Maximum time per prediction, e.g. 20ms.", parser=seconds, metavar="TIME"
    )
    max_clean_rejection: float | None = options.number(
        "Maximum share of clean images rejected, e.g. 0.02."
    )
    radii: Any = options.numbers("Radii to try, e.g. 0.05,0.1 or 1/255,2/255.")
    tried_steps: Any = options.numbers(
        "Steps of cpr to try, e.g. 5,20.", "--try-steps", parser=options.whole_numbers
    )
    thresholds: Any = options.numbers("Thresholds of confidence to try.")
    budget: str = option("Budget for the candidates that can still win.", default="standard")
    screening: str = option("Budget for every candidate.", default="quick")
    seed: int = options.seed()
    batch_size: int | None = options.batch_size()
    store: Path | None = option("Folder for finished work, to resume from.")
    figure: Path | None = option("Write the figure: .svg, .png or .pdf.")
    table: Path | None = option("Write the table as Markdown.")
    overwrite: bool = options.overwrite()


def advise(
    address: str = options.address(),
    *,
    eps: float | None = options.eps(),
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
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation import advise as advise_on
    from cpr_wrap.report.plots import check_suffix

    cost = read_cost(advice.cost)
    for file in filter(None, (advice.figure, advice.table)):
        options.check_free(file, advice.overwrite)
    if advice.figure is not None:
        check_suffix(advice.figure)
    loaded = _load.load_model(address, model, _load.pick_device(common.device))
    subject = loaded.on_images(eps, model, data)
    validation = _held_out(data, loaded.facts, advice.validation)
    tried = {"radii": advice.radii, "steps": advice.tried_steps, "thresholds": advice.thresholds}
    names = "budget screening max_latency max_clean_rejection seed batch_size store"
    kept = "nothing is saved without --store" if advice.store is None else f"see {advice.store}"
    with resumable(kept), busy("advising"):
        found = advise_on(
            loaded.model,
            subject.images.images,
            subject.images.labels,
            subject.eps,
            cost,
            validation=None if validation is None else (validation.images, validation.labels),
            norm=subject.norm,
            progress=mention,
            **{name: getattr(advice, name) for name in names.split()},
            **{name: values for name, values in tried.items() if values},
        )
    _show_advice(found, advice, common)


def _held_out(data: DataOptions, facts: ZooModel, validation: str | None) -> ImageData | None:
    """Images to choose on; None where every second one of those to report on is taken."""
    from cpr_wrap.data import DATASETS

    if validation is None and (data.dataset or facts.dataset) not in DATASETS:
        return None
    chosen = replace(data, dataset=validation or data.dataset)
    return _load.load_images(chosen, facts, "validation")


def _show_advice(found: Advice, advice: AdviceOptions, common: Common) -> None:
    from cpr_wrap._files import write_atomically
    from cpr_wrap.report.advice import advice_figure, advice_table
    from cpr_wrap.report.plots import write_figure

    table = advice_table(found)
    if advice.table is not None:
        write_atomically(advice.table, table.render("markdown") + "\n")
    if advice.figure is not None:
        write_figure(advice_figure(found), advice.figure)
    lines = [f"{table.render('text')}\n\n{found}"]
    if found.gain is not None:
        lines.append(f"without rejection the loss is {found.gain} more there")
    lines += [f"note: {note}" for note in found.notes]
    head = {"advice": str(found), "cost": found.cost.name, "eps": found.eps}
    _show.answer(common, head | {"notes": found.notes, "candidates": found.rows()}, *lines)


def calibrate(
    address: str = options.address(),
    *,
    reject_rate: float = options.number(
        "Share of correctly classified images to reject.", default=0.01
    ),
    out: Path | None = option("Save the calibrated model to this folder."),
    overwrite: bool = options.overwrite(),
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
        options.check_free(out / "config.json", overwrite)
    selective, facts = _load.load_model(address, model, _load.pick_device(common.device))
    images = _load.load_images(data, facts, None if data.chosen else "validation")
    selective, record = _load.calibrated(selective, reject_rate, images)
    folder = None if out is None else selective.save(out)
    lines = [_show.calibration_sentence(record)]
    if folder is not None:
        own = options.own_code(model.network)
        lines.append(f"saved to {folder}; load it as local:{folder}{own}")
    _show.answer(common, {"model": address, "folder": folder} | _show.plain(record), *lines)
