"""`cpr-wrap curve`: the robustness curve of a model, from the attack to the result folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cpr_wrap.cli import _load, _show, options
from cpr_wrap.cli._run import CHECK_FAILED, mention, resumable
from cpr_wrap.cli.options import Common, DataOptions, ModelOptions, option

if TYPE_CHECKING:
    from cpr_wrap.evaluation import Estimate
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.metrics import RobustnessCurve


def _alphas(text: str) -> tuple[float, ...]:
    """Shares of eps, completed with 0 and 1; refused before any work is done."""
    from cpr_wrap.metrics.curve import check_alphas

    try:
        return check_alphas(options.fractions(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to evaluate."""

    budget: str = options.budget(default="standard")
    attack: list[str] | None = option(
        "Also run this attack: see `cpr-wrap list attacks`, or module:name; repeatable."
    )
    calibrate: float | None = options.calibration()
    validation: str | None = options.validation()
    donors: str | None = option(
        "Images that restarts begin from: train, the name of a data set, or a .npz file."
    )
    alphas: Any = options.numbers("Where to tabulate the curve, e.g. 0.05,0.5.", parser=_alphas)
    ablation: bool = option("Also run each attack alone.", default=False)
    audit: bool = option("Audit the evaluation.", default=False)
    certify: bool = option("Also prove a lower bound under the curve.", default=False)
    estimate: bool = option("Only estimate the cost, from a short probe.", default=False)
    seed: int = options.seed()
    batch_size: int | None = options.batch_size()
    block_size: int | None = option(
        "Images per block; by default up to 100, or 128 of many images.", min=1
    )
    dtype: str | None = option(
        "Search in bf16 or fp16; points are judged in the model's own precision."
    )
    compile: bool = option("Search with a compiled copy.", default=False)
    channels_last: bool = option("Search with a channels-last copy.", default=False)
    out: Path | None = option("Result folder; by default runs/NAME.")
    overwrite: bool = options.overwrite()
    store: Path | None = option("Folder for finished work, to resume from; OUT/store by default.")
    points: Path | None = option(
        "Judge these points first: a result folder, or a .npz or .safetensors file."
    )
    name: str | None = option("Name of the run in tables.")


def curve(
    address: str = options.address(),
    *,
    eps: float | None = options.eps(),
    model: ModelOptions,
    data: DataOptions,
    run: RunOptions,
    common: Common,
) -> None:
    """Attack a model adaptively and print its robustness curve.

    Writes a result folder that `cpr-wrap report`, `compare` and `verify` read. The run is
    resumable: after a stop, the same command continues. Several processes share the work when
    started by `torchrun --nproc-per-node N -m -- cpr_wrap curve …`.

    Example: cpr-wrap curve bundled:mnist-compact-at --rule cpr --radius 0.1 --eps 0.3 --num 100
    --budget quick
    """
    if run.validation is not None and run.calibrate is None:
        raise typer.BadParameter("--validation: expected only with --calibrate")
    from cpr_wrap.engine.progress import busy

    with _load.several_processes(_load.pick_device(common.device)) as leads:
        task = _prepare(address, eps, model, data, run, common)
        if run.estimate:
            with busy("estimating"):
                cost = task.estimate(run.batch_size, audited=run.audit)
            if leads:
                _show_estimate(cost, task, common)
        else:
            _evaluate(task, run, common, leads=leads)


def _prepare(
    address: str,
    eps: float | None,
    model: ModelOptions,
    data: DataOptions,
    run: RunOptions,
    common: Common,
) -> Task:
    """Load everything, and refuse what cannot be before any work."""
    from cpr_wrap._text import eps_text
    from cpr_wrap.cli._attacks import find_attack
    from cpr_wrap.evaluation.curve import find_budget
    from cpr_wrap.evaluation.preflight import check_threat
    from cpr_wrap.geometry import threat

    budget = find_budget(run.budget)
    loaded = _load.load_model(address, model, _load.pick_device(common.device))
    extras = tuple(find_attack(name, loaded.model.rule) for name in run.attack or ())
    subject = loaded.on_images(eps, model, data)
    check_threat(threat(subject.norm), subject.eps, subject.images.images)
    subject = subject.calibrated(run.calibrate, run.validation, data, extras)
    images, rule, size = subject.images, subject.model.rule, eps_text(subject.eps)
    mention(
        f"{address}, {rule.describe()}, {len(images)} images of {images.name}, {subject.norm} "
        f"eps {size}"
    )
    if subject.calibration is not None:
        mention(_show.calibration_sentence(subject.calibration))
    name = run.name or _load.run_name(address, rule.name, f"{subject.norm}-{size}")
    return subject.task(name, budget, common, model.network, extras)


def _show_estimate(cost: Estimate, task: Task, common: Common) -> None:
    audit = f", {cost.audit_passes:,.0f} passes of it for the audit" if cost.audit_passes else ""
    _show.answer(
        common,
        cost,
        f"about {cost.passes:,.0f} passes ({cost.passes_per_image:,.0f} per image) and "
        f"{_show.duration(cost.seconds)} for {cost.images} images with budget {task.budget.name}, "
        f"from {cost.probed} of them{audit}",
    )


def _evaluate(task: Task, run: RunOptions, common: Common, *, leads: bool) -> None:
    from cpr_wrap.metrics import PAPER_ALPHAS

    out = run.out or Path("runs") / options.file_name(task.about.name)
    try:
        task.held_by(out, run.seed, overwrite=run.overwrite)
    except FileExistsError as error:
        raise typer.BadParameter(str(error)) from error
    store = run.store or out / "store"
    names = "seed batch_size block_size points ablation certify dtype compile channels_last"
    with resumable(f"finished work is in {store}"):
        found = task.evaluate(
            audited=run.audit,
            alphas=run.alphas or PAPER_ALPHAS,
            store=store,
            donors=task.data.name if run.donors == "train" else run.donors,
            **{name: getattr(run, name) for name in names.split()},
        )
    if not leads:
        return
    save(task, found, out)
    _print(found, out, common)
    if found.audited is False:
        raise typer.Exit(CHECK_FAILED)


def save(task: Task, found: RobustnessCurve, folder: Path) -> None:
    """Write a result folder, with pictures for its report."""
    from cpr_wrap.evaluation import save_result
    from cpr_wrap.report import make_gallery, save_gallery

    save_gallery(make_gallery(task.model, found), save_result(found, folder))


def _print(found: RobustnessCurve, folder: Path, common: Common) -> None:
    from cpr_wrap.evaluation.result import read_json
    from cpr_wrap.metrics import clean_metrics
    from cpr_wrap.metrics.comparison import implied

    if common.as_json:
        _show.print_json(read_json(folder) | {"folder": folder})
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
