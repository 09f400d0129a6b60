"""`cpr-wrap curve`: the robustness curve of a model, from the attack to the result folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import (
    about,
    calibrated,
    load_images,
    load_model,
    pick_device,
    several_processes,
    short_name,
    threat_eps,
    threat_norm,
    validation_images,
    warn_of_open_rule,
)
from cpr_wrap.cli._run import CHECK_FAILED, mention, resumable
from cpr_wrap.cli.options import (
    Address,
    BatchSize,
    BudgetName,
    Common,
    DataOptions,
    Eps,
    ModelOptions,
    Overwrite,
    Seed,
    Validation,
    file_name,
    fractions,
    number,
    option,
)

if TYPE_CHECKING:
    from cpr_wrap.evaluation import Estimate
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.metrics import RobustnessCurve


def _alphas(text: str) -> tuple[float, ...]:
    """Shares of eps, completed with 0 and 1; refused before any work is done."""
    from cpr_wrap.metrics.curve import check_alphas

    try:
        return check_alphas(fractions(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to evaluate."""

    budget: BudgetName = "standard"
    attack: Annotated[
        list[str] | None,
        option("Also run this attack: see `cpr-wrap list attacks`, or module:name; repeatable."),
    ] = None
    calibrate: Annotated[
        float | None,
        number("Calibrate first: reject this share of correctly classified images."),
    ] = None
    validation: Validation = None
    donors: Annotated[
        str | None,
        option("Images that restarts begin from: train, the name of a data set, or a .npz file."),
    ] = None
    alphas: Annotated[
        Any,  # shares of eps, once it is parsed
        option("Where to tabulate the curve, e.g. 0.05,0.5.", parser=_alphas, metavar="NUMBERS"),
    ] = None
    ablation: Annotated[bool, option("Also run each attack alone.", "--ablation")] = False
    audit: Annotated[bool, option("Audit the evaluation.", "--audit")] = False
    certify: Annotated[bool, option("Also prove a lower bound under the curve.", "--certify")] = (
        False
    )
    estimate: Annotated[
        bool, option("Only estimate the cost, from a short probe.", "--estimate")
    ] = False
    seed: Seed = 0
    batch_size: BatchSize = None
    block_size: Annotated[
        int | None,
        option(
            "Images per block; by default an eighth of all, from 16 to 128.",
            min=1,
        ),
    ] = None
    dtype: Annotated[
        str | None,
        option("Search in bf16 or fp16; points are judged in the model's own precision."),
    ] = None
    compile: Annotated[bool, option("Search with a compiled copy.", "--compile")] = False
    channels_last: Annotated[
        bool, option("Search with a channels-last copy.", "--channels-last")
    ] = False
    out: Annotated[Path | None, option("Result folder; by default runs/NAME.")] = None
    overwrite: Overwrite = False
    store: Annotated[
        Path | None,
        option("Folder for finished work, to resume from; OUT/store by default."),
    ] = None
    points: Annotated[
        Path | None,
        option("Judge these points first: a result folder, or a .npz or .safetensors file."),
    ] = None
    name: Annotated[str | None, option("Name of the run in tables.")] = None


def curve(
    address: Address,
    *,
    eps: Eps = None,
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

    device = pick_device(common.device)
    with several_processes(device) as leads:
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
    from cpr_wrap.evaluation.curve import check_threat, find_budget
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.geometry import threat

    budget = find_budget(run.budget)
    loaded = load_model(address, model, pick_device(common.device))
    eps, norm = threat_eps(eps, loaded.facts), threat_norm(model, loaded.facts)
    images = load_images(data, loaded.facts)
    check_threat(threat(norm), eps, images.images)
    selective, record = loaded.model, None
    extras = tuple(find_attack(name, selective.rule) for name in run.attack or ())
    if run.calibrate is not None:
        held_out = validation_images(data, loaded.facts, run.validation, images)
        selective, record = calibrated(selective, run.calibrate, held_out)
    warn_of_open_rule(selective)
    mention(
        f"{address}, {selective.rule.describe()}, {len(images)} images of {images.name}, {norm} "
        f"eps {eps_text(eps)}"
    )
    if record is not None:
        mention(_show.calibration_sentence(record))
    words = (short_name(address), selective.rule.name, f"{norm}-{eps_text(eps)}")
    return Task(
        about=about(run.name or "+".join(words), loaded.facts, images, model.network, common),
        model=selective,
        data=images,
        eps=eps,
        norm=norm,
        budget=budget,
        extras=extras,
        calibration=None if record is None else record.facts,
    )


def _show_estimate(cost: Estimate, task: Task, common: Common) -> None:
    if common.as_json:
        _show.print_json(cost)
        return
    audit = f", {cost.audit_passes:,.0f} passes of it for the audit" if cost.audit_passes else ""
    typer.echo(
        f"about {cost.passes:,.0f} passes ({cost.passes_per_image:,.0f} per image) and "
        f"{_show.duration(cost.seconds)} for {cost.images} images with budget {task.budget.name}, "
        f"from {cost.probed} of them{audit}"
    )


def _evaluate(task: Task, run: RunOptions, common: Common, *, leads: bool) -> None:
    from cpr_wrap.evaluation import save_result
    from cpr_wrap.metrics import PAPER_ALPHAS
    from cpr_wrap.report import make_gallery, save_gallery

    out = run.out or Path("runs") / file_name(task.about.name)
    try:
        task.held_by(out, run.seed, overwrite=run.overwrite)
    except FileExistsError as error:
        raise typer.BadParameter(str(error)) from error
    store = run.store or out / "store"
    with resumable(f"finished work is in {store}"):
        found = task.evaluate(
            audited=run.audit,
            seed=run.seed,
            alphas=run.alphas or PAPER_ALPHAS,
            batch_size=run.batch_size,
            block_size=run.block_size,
            store=store,
            points=run.points,
            donors=task.data.name if run.donors == "train" else run.donors,
            ablation=run.ablation,
            certify=run.certify,
            dtype=run.dtype,
            compile=run.compile,
            channels_last=run.channels_last,
        )
    if not leads:
        return
    folder = save_result(found, out)
    save_gallery(make_gallery(task.model, found), folder)
    _print(found, folder, common)
    if found.audited is False:
        raise typer.Exit(CHECK_FAILED)


def _print(found: RobustnessCurve, folder: Path, common: Common) -> None:
    from cpr_wrap.evaluation.result import read_json
    from cpr_wrap.metrics.comparison import implied

    if common.as_json:
        _show.print_json(read_json(folder) | {"folder": folder})
        return
    _show.print_curve(found)
    typer.echo(_show.clean_sentence(found))
    typer.echo(_show.cost_sentence(found))
    if found.effort is not None:
        typer.echo(found.effort.describe())
    if said := implied(found):
        typer.echo(said)
    if found.certificate is not None:
        typer.echo(_show.certificate_sentence(found.certificate))
    if found.checks is not None:
        _show.print_checks(found.checks)
    typer.echo(f"written to {folder}; next: cpr-wrap report {folder}")
