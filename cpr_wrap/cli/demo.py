"""`cpr-wrap demo`: the whole story offline, on a bundled model and bundled images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import typer

from cpr_wrap.cli import _load, _show
from cpr_wrap.cli._run import print_json, resumable, say
from cpr_wrap.cli.commands import Demo, Sweep
from cpr_wrap.cli.curve import save
from cpr_wrap.cli.sweep import make_tasks
from cpr_wrap.data import load_data
from cpr_wrap.evaluation.curve import find_budget
from cpr_wrap.evaluation.sweep import Task
from cpr_wrap.metrics import RobustnessCurve, accuracy_with_rejection, f1_like, rejection_rate
from cpr_wrap.report import Cell, Table, ranking, write_report
from cpr_wrap.report.tables import share_cell
from cpr_wrap.rule import rule_config

ADDRESS, EPS, REJECT_RATE = "bundled:mnist-compact-at", 0.3, 0.01
_RULES = {
    "CPR": f"cpr:radius=0.1,steps=20,step_size=0.01,calibrate={REJECT_RATE}",
    "confidence": f"confidence:calibrate={REJECT_RATE}",
    "no rejection": "none",
}
_BATCH = 250  # of clean images


def demo(options: Demo) -> None:
    """Tell the story."""
    budget, out, started = find_budget(options.budget), options.out, time.perf_counter()
    tell: Callable[[str], None] = (lambda _: None) if options.as_json else typer.echo
    tell(f"{ADDRESS}: a small network, trained adversarially on MNIST at Linf eps {EPS:g}.")
    contenders = _contenders(_load.pick_device(options.device))
    number = max(each.calibration.num_images for each in contenders if each.calibration)
    tell(f"Two rules may reject. Both are set on {number:,} validation images to reject")
    tell(f"{_show.percent(REJECT_RATE)} of the right answers:")
    for each in contenders:
        tell(f"  {_sentence(each)}")
    tell(f"\nOn {len(contenders[0].data):,} clean test images:\n\n{_clean_table(contenders)}\n")
    images = load_data("mnist", "robust", num=options.num)
    tasks = [replace(each, data=images, budget=budget) for each in contenders]
    folders = [out / each.about.name.replace(" ", "-").lower() for each in tasks]
    for task, folder in zip(tasks, folders, strict=True):
        task.held_by(folder, overwrite=options.overwrite)
    tell(f"Attacking the first {options.num} of them, each rule by the attacks adapted to it …")
    curves = []
    with resumable(f"finished work is in {out / 'store'}"):
        for task, folder in zip(tasks, folders, strict=True):
            say(f"{task.about.name}:")
            curves.append(task.evaluate(audited=False, store=out / "store"))
            save(task, curves[-1], folder)
    report = write_report(folders, out / "report.html")
    if options.as_json:
        pairs = zip(tasks, curves, strict=True)
        runs = {task.about.name: _summary(task, curve) for task, curve in pairs}
        print_json({"model": ADDRESS, "runs": runs, "report": report})
        return
    _conclude(curves)
    tell(f"{_show.duration(time.perf_counter() - started)}. The report: {report}")


def _contenders(device: torch.device) -> list[Task]:
    """The same network with CPR and with confidence rejection, calibrated alike, and bare."""
    plan = Sweep(models=[ADDRESS], rules=list(_RULES.values()), eps=[str(EPS)])
    tasks = zip(_RULES, make_tasks(plan, device), strict=True)
    return [
        replace(task, about=replace(task.about, name=name, clean_test=_clean(task)))
        for name, task in tasks
    ]


def _clean(task: Task) -> dict[str, float]:
    """Figures on clean images."""
    device, labels = next(task.model.base.parameters()).device, task.data.labels
    batches = task.data.images.split(_BATCH)
    predicted = torch.cat([task.model.predict(batch.to(device)).cpu() for batch in batches])
    return {
        "accuracy_with_rejection": accuracy_with_rejection(predicted, labels),
        "rejection_rate": rejection_rate(predicted),
        "f1_like": f1_like(predicted, labels),
        "images": len(labels),
    }


def _sentence(task: Task) -> str:
    """The rule, and what its calibration measured."""
    rule, record = f"{task.about.name}: {task.model.rule.describe()}", task.calibration
    if record is None:
        return rule
    return f"{rule}, rejects {record.num_rejected} of {record.num_correct}"


def _summary(task: Task, curve: RobustnessCurve) -> dict[str, Any]:
    record = task.calibration
    return {
        "rule": rule_config(task.model.rule),
        "calibration": None if record is None else _show.calibration_facts(record),
        "clean_test": task.about.clean_test,
        **curve.summary(),
    }


def _clean_table(contenders: Sequence[Task]) -> str:
    titles = {
        "accuracy_with_rejection": "right, of those accepted",
        "rejection_rate": "rejected",
        "f1_like": "F1-like",
    }
    clean = [each.about.clean_test or {} for each in contenders]
    columns = {title: [share_cell(known[key]) for known in clean] for key, title in titles.items()}
    return Table.of({"rule": [each.about.name for each in contenders], **columns}).render()


def _conclude(curves: Sequence[RobustnessCurve]) -> None:
    alphas = curves[0].alphas
    columns = {
        each.about.name: list(map(share_cell, map(each.accuracy_at, alphas))) for each in curves
    }
    typer.echo(
        "\nRobustness with rejection. An image counts as lost if an accepted mistake was found\n"
        "within eps, or a rejection within α · eps: rejecting a nearly clean image is an error,\n"
        "rejecting a heavily perturbed one is what the rule is for.\n"
    )
    typer.echo(Table.of({"α": [Cell(f"{a:g}", a) for a in alphas], **columns}).render() + "\n")
    typer.echo("Total robust loss: a mistake costs 1, a rejection what the rejection loss says.\n")
    typer.echo(f"{ranking(curves)[0][0].render()}\n")
