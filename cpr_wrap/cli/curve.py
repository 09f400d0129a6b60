"""`cpr-wrap curve`: the robustness curve of a model, from the attack to the result folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import typer

from cpr_wrap._text import eps_text
from cpr_wrap.cli import _load, _show
from cpr_wrap.cli._attacks import find_attack
from cpr_wrap.cli._run import CHECK_FAILED, answer, mention, print_json, resumable
from cpr_wrap.cli.commands import Curve
from cpr_wrap.engine.progress import busy
from cpr_wrap.evaluation import Estimate, save_result
from cpr_wrap.evaluation.curve import find_budget
from cpr_wrap.evaluation.preflight import check_threat
from cpr_wrap.evaluation.result import read_json
from cpr_wrap.evaluation.sweep import Task
from cpr_wrap.geometry import threat
from cpr_wrap.metrics import PAPER_ALPHAS, RobustnessCurve, clean_metrics
from cpr_wrap.metrics.comparison import implied
from cpr_wrap.report import make_gallery, save_gallery


def curve(options: Curve) -> None:
    """Evaluate, or only estimate the cost."""
    if options.validation is not None and options.calibrate is None:
        raise typer.BadParameter("--validation: expected only with --calibrate")
    device = _load.pick_device(options.device)
    with _load.several_processes(device) as leads:
        task = _prepare(options, device)
        if options.estimate:
            with busy("estimating"):
                cost = task.estimate(options.batch_size, audited=options.audit)
            if leads:
                _show_estimate(cost, task, options)
        else:
            _evaluate(task, options, leads=leads)


def _prepare(options: Curve, device: torch.device) -> Task:
    """Load everything, and refuse what cannot be before any work."""
    budget = find_budget(options.budget)
    loaded = _load.load_model(options, device)
    extras = tuple(find_attack(name, loaded.model.rule) for name in options.attack or ())
    task = _load.load_task(options, loaded, budget, extras)
    check_threat(threat(task.norm), task.eps, task.data.images)
    task = _load.calibrated_task(task, options.calibrate, options, loaded.facts)
    images, rule = task.data, task.model.rule
    mention(
        f"{options.address}, {rule.describe()}, {len(images)} images of {images.name}, "
        f"{task.norm} eps {eps_text(task.eps)}"
    )
    if task.calibration is not None:
        mention(_show.calibration_sentence(task.calibration))
    return replace(task, about=replace(task.about, name=options.name or task.about.name))


def _show_estimate(cost: Estimate, task: Task, options: Curve) -> None:
    audit = f", {cost.audit_passes:,.0f} passes of it for the audit" if cost.audit_passes else ""
    answer(
        options,
        cost,
        f"about {cost.passes:,.0f} passes ({cost.passes_per_image:,.0f} per image) and "
        f"{_show.duration(cost.seconds)} for {cost.images} images with budget {task.budget.name}, "
        f"from {cost.probed} of them{audit}",
    )


def _evaluate(task: Task, options: Curve, *, leads: bool) -> None:
    out = options.out or Path("runs") / _load.file_name(task.about.name)
    try:
        task.held_by(out, options.seed, overwrite=options.overwrite)
    except FileExistsError as error:
        raise typer.BadParameter(str(error)) from error
    store = options.store or out / "store"
    names = "seed batch_size block_size points ablation certify dtype compile channels_last"
    with resumable(f"finished work is in {store}"):
        found = task.evaluate(
            audited=options.audit,
            alphas=options.alphas or PAPER_ALPHAS,
            store=store,
            donors=task.data.name if options.donors == "train" else options.donors,
            **{name: getattr(options, name) for name in names.split()},
        )
    if not leads:
        return
    save(task, found, out)
    _print(found, out, options)
    if found.audited is False:
        raise typer.Exit(CHECK_FAILED)


def save(task: Task, found: RobustnessCurve, folder: Path) -> None:
    """Write a result folder, with pictures for its report."""
    save_gallery(make_gallery(task.model, found), save_result(found, folder))


def _print(found: RobustnessCurve, folder: Path, options: Curve) -> None:
    if options.as_json:
        print_json(read_json(folder) | {"folder": folder})
        return
    _show.print_curve(found)
    clean = clean_metrics(found.records)
    seconds = 0.0 if found.provenance is None else found.provenance.seconds
    lines = [
        f"clean images: {_show.percent(clean.accuracy_with_rejection)} of the accepted are right, "
        f"{_show.percent(clean.rejection_rate)} are rejected",
        "right when clean, and no accepted mistake found within eps:  "
        f"{_show.percent(clean.robust_accuracy_with_detection)}",
        f"{found.passes_per_image:,.0f} passes per image, {_show.duration(seconds)} in all",
        "" if found.effort is None else found.effort.describe(),
        implied(found),
        "" if found.certificate is None else _show.certificate_sentence(found.certificate),
    ]
    if found.checks is not None:
        marks = {True: "ok ", False: "NO ", None: "-  "}
        lines.append("Can the evaluation be trusted?")
        lines += [f"  {marks[each.passed]} {each.name}: {each.detail}" for each in found.checks]
    lines.append(f"written to {folder}; next: cpr-wrap report {folder}")
    typer.echo("\n".join(filter(None, lines)))
