"""`cpr-wrap demo`: the whole story offline, on a bundled model and bundled images."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    """The network under one rule, and how the rule was set, None where there is nothing to set."""

    name: str
    model: SelectiveClassifier
    calibration: CalibrationRecord | None

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
    tell = _quietly if common.as_json else typer.echo
    test, validation = load_data("mnist", "robust"), load_data("mnist", "validation")
    tell(f"{ADDRESS}: a small network, trained adversarially on MNIST at Linf eps {EPS:g}.")
    tell(f"Two rules may reject. Both are set on {len(validation):,} validation images to reject")
    tell(f"{_show.percent(REJECT_RATE)} of the right answers:")
    contenders = _contenders(pick_device(common.device), validation)
    for each in contenders:
        tell(f"  {each.sentence}")
    clean = [_clean(each.model, test) for each in contenders]
    tell(f"\nOn {len(test):,} clean test images:\n\n{_clean_table(contenders, clean)}\n")
    tasks = _tasks(contenders, clean, num, plan)
    folders = [out / each.name.replace(" ", "-").lower() for each in contenders]
    for task, folder in zip(tasks, folders, strict=True):
        task.held_by(folder, overwrite=overwrite)
    tell(f"Attacking the first {num} of them, each rule by the attacks adapted to it …")
    with resumable(f"finished work is in {out / 'store'}"):
        curves = [_run(*pair, out / "store") for pair in zip(tasks, folders, strict=True)]
    report = write_report(folders, out / "report.html")
    if common.as_json:
        _show.print_json(_summary(contenders, curves, clean) | {"report": report})
        return
    _conclude([each.name for each in contenders], curves)
    tell(f"{_show.duration(time.perf_counter() - started)}. The report: {report}")


def _quietly(text: str) -> None:
    """Say nothing: standard output is for JSON."""


def _contenders(device: Any, validation: ImageData) -> list[Contender]:
    """The same network with CPR and with confidence rejection, calibrated alike, and bare."""
    from cpr_wrap.calibration import calibrate
    from cpr_wrap.zoo import load

    data = (validation.images.to(device), validation.labels.to(device), REJECT_RATE)
    cpr = load(ADDRESS, rule="cpr", steps=20, step_size=0.01, radius=0.1, device=device)
    confidence = load(ADDRESS, rule="confidence", device=device)
    return [
        Contender("CPR", *calibrate(cpr, *data)),
        Contender("confidence", *calibrate(confidence, *data)),
        Contender("no rejection", load(ADDRESS, rule="none", device=device), None),
    ]


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


def _tasks(
    contenders: Sequence[Contender], clean: Sequence[dict[str, float]], num: int, budget: Budget
) -> list[Task]:
    """The evaluations, all on the same images."""
    from cpr_wrap.data import load_data
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.metrics import About

    facts: dict[str, Any] = {"model": ADDRESS, "dataset": "mnist", "command": command_line()}
    images = load_data("mnist", "robust", num=num)
    return [
        Task(
            about=About(name=each.name, clean_test=figures, **facts),
            model=each.model,
            data=images,
            eps=EPS,
            norm="Linf",
            budget=budget,
            calibration=None if each.calibration is None else each.calibration.facts,
        )
        for each, figures in zip(contenders, clean, strict=True)
    ]


def _run(task: Task, folder: Path, store: Path) -> RobustnessCurve:
    say(f"{task.about.name}:")
    curve = task.evaluate(audited=False, store=store)
    save(task, curve, folder)
    return curve


def _summary(
    contenders: Sequence[Contender],
    curves: Sequence[RobustnessCurve],
    clean: Sequence[dict[str, float]],
) -> dict[str, Any]:
    runs = {
        each.name: {
            "rule": each.model.rule,
            "calibration": each.calibration,
            "clean_test": figures,
            **curve.summary(),
        }
        for each, curve, figures in zip(contenders, curves, clean, strict=True)
    }
    return {"model": ADDRESS, "runs": runs}


def _clean_table(contenders: Sequence[Contender], clean: Sequence[dict[str, float]]) -> str:
    from cpr_wrap.report import Cell, Column, Table

    titles = ("rule", "right, of those accepted", "rejected", "F1-like")
    names = ("accuracy_with_rejection", "rejection_rate", "f1_like")
    return Table(
        columns=tuple(Column(title, words=title == "rule") for title in titles),
        rows=tuple(
            (Cell(each.name), *(Cell(_show.percent(figures[name])) for name in names))
            for each, figures in zip(contenders, clean, strict=True)
        ),
    ).render("text")


def _conclude(names: Sequence[str], curves: Sequence[RobustnessCurve]) -> None:
    from cpr_wrap.report import Cell, Column, Run, Table, ranking

    columns = (Column("α"), *(Column(name) for name in names))
    rows = tuple(
        (Cell(f"{alpha:g}"), *(Cell(_show.percent(curve.accuracy_at(alpha))) for curve in curves))
        for alpha in curves[0].alphas
    )
    typer.echo(
        "\nRobustness with rejection. An image counts as lost if an accepted mistake was found\n"
        "within eps, or a rejection within α · eps: rejecting a nearly clean image is an error,\n"
        "rejecting a heavily perturbed one is what the rule is for.\n"
    )
    typer.echo(Table(columns=columns, rows=rows).render("text") + "\n")
    runs = [Run.of(curve, name) for curve, name in zip(curves, names, strict=True)]
    typer.echo("Total robust loss: a mistake costs 1, a rejection what the rejection loss says.\n")
    typer.echo(f"{ranking(runs)[0][0].render('text')}\n")
