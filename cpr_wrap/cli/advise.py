"""`cpr-wrap advise` and `calibrate`: which rule, and which radius or threshold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cpr_wrap._files import write_atomically
from cpr_wrap._registry import resolve
from cpr_wrap.cli import _load, _show
from cpr_wrap.cli._run import answer, mention, resumable
from cpr_wrap.cli.commands import Advise, Calibrate
from cpr_wrap.data import DATASETS, ImageData
from cpr_wrap.engine.progress import busy
from cpr_wrap.evaluation import Advice
from cpr_wrap.evaluation import advise as advise_on
from cpr_wrap.metrics.losses import LOSS_KINDS, LossLike, parse_loss
from cpr_wrap.report.advice import advice_figure, advice_table
from cpr_wrap.report.plots import check_suffix, write_figure
from cpr_wrap.zoo import ZooModel


def read_cost(text: str) -> LossLike:
    """Read a cost: `step:0.05`, `ramp:2`, a table, or a function `own.py:l` of the distance."""
    kind, colon, name = text.partition(":")
    if kind in LOSS_KINDS or not colon:
        return parse_loss(text)
    module = ".".join(Path(kind).with_suffix("").parts) if kind.endswith(".py") else kind
    found: LossLike = resolve(f"{module}:{name}")
    return found


def advise(options: Advise) -> None:
    """Search for the best candidate, and show all of them."""
    cost = read_cost(options.cost)
    for file in filter(None, (options.figure, options.table)):
        _load.check_free(file, options.overwrite)
    if options.figure is not None:
        check_suffix(options.figure)
    loaded = _load.load_model(options, _load.pick_device(options.device))
    task = _load.load_task(options, loaded)
    validation = _held_out(options, loaded.facts)
    tried = {"radii": options.radii, "steps": options.tried_steps, "thresholds": options.thresholds}
    names = "budget screening max_latency max_clean_rejection seed batch_size store"
    kept = "nothing is saved without --store" if options.store is None else f"see {options.store}"
    with resumable(kept), busy("advising"):
        found = advise_on(
            task.model,
            task.data.images,
            task.data.labels,
            task.eps,
            cost,
            validation=None if validation is None else (validation.images, validation.labels),
            norm=task.norm,
            progress=mention,
            **{name: getattr(options, name) for name in names.split()},
            **{name: values for name, values in tried.items() if values},
        )
    _show_advice(found, options)


def _held_out(options: Advise, facts: ZooModel) -> ImageData | None:
    """Images to choose on; None where every second one of those to report on is taken."""
    if options.validation is None and (options.dataset or facts.dataset) not in DATASETS:
        return None
    chosen = replace(options, dataset=options.validation or options.dataset)
    return _load.load_images(chosen, facts, "validation")


def _show_advice(found: Advice, options: Advise) -> None:
    table = advice_table(found)
    if options.table is not None:
        write_atomically(options.table, table.render("markdown") + "\n")
    if options.figure is not None:
        write_figure(advice_figure(found), options.figure)
    lines = [f"{table.render('text')}\n\n{found}"]
    if found.gain is not None:
        lines.append(f"without rejection the loss is {found.gain} more there")
    lines += [f"note: {note}" for note in found.notes]
    head = {"advice": str(found), "cost": found.cost.name, "eps": found.eps}
    answer(options, head | {"notes": found.notes, "candidates": found.rows()}, *lines)


def calibrate(options: Calibrate) -> None:
    """Set a rule, and save the model."""
    out = options.out
    if out is not None:
        _load.check_free(out / "config.json", options.overwrite)
    model, facts = _load.load_model(options, _load.pick_device(options.device))
    images = _load.load_images(options, facts, None if options.chosen else "validation")
    model, record = _load.calibrated(model, options.reject_rate, images)
    folder = None if out is None else model.save(out)
    lines = [_show.calibration_sentence(record)]
    if folder is not None:
        own = _load.own_code(options.network)
        lines.append(f"saved to {folder}; load it as local:{folder}{own}")
    content = {"model": options.address, "folder": folder} | _show.calibration_facts(record)
    answer(options, content, *lines)
