"""`cpr-wrap demo`: the whole story offline, on a bundled model and bundled images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from cpr_wrap.cli import _show, options
from cpr_wrap.cli._load import pick_device
from cpr_wrap.cli._run import command_line, resumable, say
from cpr_wrap.cli.curve import save
from cpr_wrap.cli.options import Common, option

if TYPE_CHECKING:
    from cpr_wrap.attacks.ensemble import Budget
    from cpr_wrap.calibration import CalibrationRecord
    from cpr_wrap.data import ImageData
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.metrics import RobustnessCurve
    from cpr_wrap.selective import SelectiveClassifier

ADDRESS, EPS, REJECT_RATE = "bundled:mnist-compact-at", 0.3, 0.01
_BATCH = 250  # of clean images


class Contender(NamedTuple):
    """The network under one rule, how the rule was set, if it was, and figures on clean images."""

    name: str
    model: SelectiveClassifier
    calibration: CalibrationRecord | None
    clean: dict[str, float]

    @property
    def sentence(self) -> str:
        """The rule and what its calibration measured."""
        rule, record = f"{self.name}: {self.model.rule.describe()}", self.calibration
        if record is None:
            return rule
        return f"{rule}, rejects {record.num_rejected} of {record.num_correct}"


def demo(
    *,
    num: int = option("Test images to attack.", "--num", "-n", default=100, min=1, max=1000),
    budget: str = options.budget(default="quick"),
    out: Path = option("Where to write results.", default=Path("cpr-wrap-demo")),
    overwrite: bool = options.overwrite(),
    common: Common,
) -> None:
    """Run the whole workflow on a small MNIST model, offline, in a few minutes.

    Calibrates consistent-prediction rejection (CPR), attacks it adaptively, and compares it with
    confidence rejection and with no rejection at all. Writes an HTML report.

    Example: cpr-wrap demo
    """
    from cpr_wrap.data import load_data
    from cpr_wrap.evaluation.curve import find_budget
    from cpr_wrap.report import write_report

    plan = find_budget(budget)
    started = time.perf_counter()
    tell: Callable[[str], None] = (lambda _: None) if common.as_json else typer.echo
    test, validation = load_data("mnist", "robust"), load_data("mnist", "validation")
    tell(f"{ADDRESS}: a small network, trained adversarially on MNIST at Linf eps {EPS:g}.")
    tell(f"Two rules may reject. Both are set on {len(validation):,} validation images to reject")
    tell(f"{_show.percent(REJECT_RATE)} of the right answers:")
    contenders = _contenders(pick_device(common.device), validation, test)
    for each in contenders:
        tell(f"  {each.sentence}")
    tell(f"\nOn {len(test):,} clean test images:\n\n{_clean_table(contenders)}\n")
    images = load_data("mnist", "robust", num=num)
    tasks = [_task(each, images, plan) for each in contenders]
    folders = [out / each.name.replace(" ", "-").lower() for each in contenders]
    for task, folder in zip(tasks, folders, strict=True):
        task.held_by(folder, overwrite=overwrite)
    tell(f"Attacking the first {num} of them, each rule by the attacks adapted to it …")
    with resumable(f"finished work is in {out / 'store'}"):
        curves = [_run(*pair, out / "store") for pair in zip(tasks, folders, strict=True)]
    report = write_report(folders, out / "report.html")
    if common.as_json:
        _show.print_json(_summary(contenders, curves) | {"report": report})
        return
    _conclude([each.name for each in contenders], curves)
    tell(f"{_show.duration(time.perf_counter() - started)}. The report: {report}")


def _contenders(device: Any, validation: ImageData, test: ImageData) -> list[Contender]:
    """The same network with CPR and with confidence rejection, calibrated alike, and bare."""
    from cpr_wrap.calibration import calibrate
    from cpr_wrap.zoo import load

    data = (validation.images.to(device), validation.labels.to(device), REJECT_RATE)
    cpr = load(ADDRESS, rule="cpr", steps=20, step_size=0.01, radius=0.1, device=device)
    confidence = load(ADDRESS, rule="confidence", device=device)
    models = {
        "CPR": calibrate(cpr, *data),
        "confidence": calibrate(confidence, *data),
        "no rejection": (load(ADDRESS, rule="none", device=device), None),
    }
    return [Contender(name, *found, _clean(found[0], test)) for name, found in models.items()]


def _clean(model: SelectiveClassifier, test: ImageData) -> dict[str, float]:
    import torch

    from cpr_wrap.metrics import accuracy_with_rejection, f1_like, rejection_rate

    device = next(model.base.parameters()).device
    answers = [model.predict(batch.to(device)).cpu() for batch in test.images.split(_BATCH)]
    predicted = torch.cat(answers)
    return {
        "accuracy_with_rejection": accuracy_with_rejection(predicted, test.labels),
        "rejection_rate": rejection_rate(predicted),
        "f1_like": f1_like(predicted, test.labels),
        "images": len(test),
    }


def _task(contender: Contender, images: ImageData, budget: Budget) -> Task:
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.metrics import About

    record = contender.calibration
    return Task(
        about=About(
            name=contender.name,
            clean_test=contender.clean,
            model=ADDRESS,
            dataset="mnist",
            command=command_line(),
        ),
        model=contender.model,
        data=images,
        eps=EPS,
        norm="Linf",
        budget=budget,
        calibration=None if record is None else record.facts,
    )


def _run(task: Task, folder: Path, store: Path) -> RobustnessCurve:
    say(f"{task.about.name}:")
    curve = task.evaluate(audited=False, store=store)
    save(task, curve, folder)
    return curve


def _summary(contenders: Sequence[Contender], curves: Sequence[RobustnessCurve]) -> dict[str, Any]:
    runs = {
        each.name: {
            "rule": each.model.rule,
            "calibration": each.calibration,
            "clean_test": each.clean,
            **curve.summary(),
        }
        for each, curve in zip(contenders, curves, strict=True)
    }
    return {"model": ADDRESS, "runs": runs}


def _clean_table(contenders: Sequence[Contender]) -> str:
    titles = ("rule", "right, of those accepted", "rejected", "F1-like")
    names = ("accuracy_with_rejection", "rejection_rate", "f1_like")
    return _table(
        titles, [(c.name, *(_show.percent(c.clean[name]) for name in names)) for c in contenders]
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from cpr_wrap.report import Cell, Column, Table

    columns = tuple(Column(title, words=title == "rule") for title in titles)
    return Table(columns=columns, rows=tuple(tuple(map(Cell, row)) for row in rows)).render("text")


def _conclude(names: Sequence[str], curves: Sequence[RobustnessCurve]) -> None:
    from cpr_wrap.report import Run, ranking

    rows = [
        (f"{alpha:g}", *(_show.percent(curve.accuracy_at(alpha)) for curve in curves))
        for alpha in curves[0].alphas
    ]
    typer.echo(
        "\nRobustness with rejection. An image counts as lost if an accepted mistake was found\n"
        "within eps, or a rejection within α · eps: rejecting a nearly clean image is an error,\n"
        "rejecting a heavily perturbed one is what the rule is for.\n"
    )
    typer.echo(_table(("α", *names), rows) + "\n")
    runs = [Run.of(curve, name) for curve, name in zip(curves, names, strict=True)]
    typer.echo("Total robust loss: a mistake costs 1, a rejection what the rejection loss says.\n")
    typer.echo(f"{ranking(runs)[0][0].render('text')}\n")
