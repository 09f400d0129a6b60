"""`cpr-wrap curve`: the robustness curve of a model, from the attack to the result folder."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import (
    Loaded,
    calibrated,
    load_images,
    load_model,
    pick_device,
    threat_eps,
    threat_norm,
    validation_images,
    warn_of_open_rule,
)
from cpr_wrap.cli._processes import several_processes
from cpr_wrap.cli._run import CHECK_FAILED, command_line, mention, resumable
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
    fractions,
    number,
    option,
)

if TYPE_CHECKING:
    from cpr_wrap.attacks.adaptive import Stage
    from cpr_wrap.attacks.ensemble import Budget
    from cpr_wrap.calibration import CalibrationRecord
    from cpr_wrap.data import ImageData
    from cpr_wrap.metrics import About, RobustnessCurve
    from cpr_wrap.selective import SelectiveClassifier


def _alphas(text: str) -> tuple[float, ...]:
    """Shares of eps, completed with 0 and 1; refused before any work is done."""
    from cpr_wrap.metrics.curve import check_alphas

    try:
        return check_alphas(fractions(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to evaluate.

    Attributes:
        budget: How hard to attack.
        attack: Attacks beside the budget's.
        calibrate: Share of right answers that the rule may reject.
        validation: Images to calibrate on.
        donors: Images that restarts begin from.
        alphas: Where the curve is tabulated.
        ablation: Whether to run every attack alone too.
        audit: Whether to ask if the evaluation itself is believable.
        certify: Whether to prove what bounds can prove too.
        estimate: Whether only to say what it would cost.
        seed: Seed of all random starts.
        batch_size: Rows in a batch.
        block_size: Images that are worked on together.
        dtype: Precision to search in.
        compile: Whether to search with a compiled network.
        channels_last: Whether to search with a network in that memory format.
        out: The result folder.
        overwrite: Whether another run in it may be replaced.
        store: Where finished work is kept.
        points: Points found elsewhere, judged first.
        name: What to call the run.
    """

    budget: BudgetName = "standard"
    attack: Annotated[
        list[str] | None,
        option("Also run this attack: see `cpr-wrap list attacks`, or module:name; repeatable."),
    ] = None
    calibrate: Annotated[
        float | None,
        number("First set the rule to reject this share of right answers."),
    ] = None
    validation: Annotated[
        str | None,
        option("Images to calibrate on; by default the validation part of the data set."),
    ] = None
    donors: Annotated[
        str | None,
        option("Images that restarts begin from: train, a data set's name or a .npz file."),
    ] = None
    alphas: Annotated[
        Any,  # shares of eps, once it is parsed
        option("Where to tabulate the curve, e.g. 0.05,0.5.", parser=_alphas, metavar="NUMBERS"),
    ] = None
    ablation: Annotated[bool, option("Run each attack alone too.", "--ablation")] = False
    audit: Annotated[bool, option("Check the evaluation itself.", "--audit")] = False
    certify: Annotated[bool, option("Also prove a lower bound under the curve.", "--certify")] = (
        False
    )
    estimate: Annotated[
        bool, option("Only say what it would cost, from a short probe.", "--estimate")
    ] = False
    seed: Seed = 0
    batch_size: BatchSize = None
    block_size: Annotated[
        int | None,
        option("Images worked on together, by one process; by default 128.", min=1),
    ] = None
    dtype: Annotated[
        str | None, option("Search in bf16 or fp16; the model's own precision judges.")
    ] = None
    compile: Annotated[bool, option("Search with a compiled copy.", "--compile")] = False
    channels_last: Annotated[
        bool, option("Search with a channels-last copy.", "--channels-last")
    ] = False
    out: Annotated[Path | None, option("Result folder; by default runs/NAME.")] = None
    overwrite: Overwrite = False
    store: Annotated[
        Path | None,
        option("Where finished work is kept for a rerun; by default OUT/store."),
    ] = None
    points: Annotated[
        Path | None,
        option("Judge these points first: a result folder, or a .npz or .safetensors file."),
    ] = None
    name: Annotated[str | None, option("What to call the run in tables.")] = None


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A model, its images and the budget of the adversary."""

    address: str
    network: str
    model: SelectiveClassifier
    data: ImageData
    eps: float
    norm: str
    plan: Budget
    extras: tuple[Stage, ...]
    calibration: CalibrationRecord | None

    @property
    def name(self) -> str:
        from cpr_wrap._text import eps_text

        model = self.address.rpartition(":")[2].rpartition("/")[2]
        return f"{model}+{self.model.rule.name}+{self.norm}-{eps_text(self.eps)}"

    @property
    def sentence(self) -> str:
        from cpr_wrap._text import eps_text

        return (
            f"{self.address}, {self.model.rule.describe()}, {len(self.data)} images of "
            f"{self.data.name}, {self.norm} eps {eps_text(self.eps)}"
        )


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

    Writes a result folder that `cpr-wrap report`, `compare` and `verify` read. Stopped, the same
    command goes on where it was. Several processes share the work when started by
    `torchrun --nproc-per-node N -m -- cpr_wrap curve …`.

    Example: cpr-wrap curve bundled:mnist-compact-at --rule cpr --radius 0.1 --eps 0.3 --num 100
    --budget quick
    """
    if run.validation is not None and run.calibrate is None:
        raise typer.BadParameter("--validation: expected only beside --calibrate")
    device = pick_device(common.device)
    with several_processes(device) as leads:
        task = _prepare(address, eps, model, data, run, load_model(address, model, device))
        mention(task.sentence)
        if task.calibration is not None:
            mention(_show.calibration_sentence(task.calibration))
        if run.estimate:
            _estimate(task, run, common, leads=leads)
        else:
            _evaluate(task, run, common, leads=leads)


def _prepare(
    address: str,
    eps: float | None,
    model: ModelOptions,
    data: DataOptions,
    run: RunOptions,
    loaded: Loaded,
) -> _Task:
    from cpr_wrap.cli._attacks import find_attack, find_budget
    from cpr_wrap.evaluation.curve import check_threat
    from cpr_wrap.geometry import threat

    plan = find_budget(run.budget)
    eps, norm = threat_eps(eps, loaded.facts), threat_norm(model, loaded.facts)
    images = load_images(data, loaded.facts)
    check_threat(threat(norm), eps, images.images)
    selective, calibration = loaded.model, None
    extras = tuple(find_attack(name, selective.rule) for name in run.attack or ())
    if run.calibrate is not None:
        held_out = validation_images(data, loaded.facts, run.validation, images)
        selective, calibration = calibrated(selective, run.calibrate, held_out)
    warn_of_open_rule(selective)
    return _Task(
        address=address,
        network=model.network or "",
        model=selective,
        data=images,
        eps=eps,
        norm=norm,
        plan=plan,
        extras=extras,
        calibration=calibration,
    )


def _estimate(task: _Task, run: RunOptions, common: Common, *, leads: bool) -> None:
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation import estimate_cost

    with busy("estimating"):
        cost = estimate_cost(
            task.model,
            task.data.images,
            task.data.labels,
            task.eps,
            budget=task.plan,
            batch_size=run.batch_size,
            norm=task.norm,
        )
    if not leads:
        return
    if common.as_json:
        _show.print_json(cost)
        return
    typer.echo(
        f"about {cost.passes:,.0f} passes ({cost.passes_per_image:,.0f} per image) and "
        f"{_show.duration(cost.seconds)} for {cost.images} images with budget {task.plan.name}, "
        f"from {cost.probed} of them"
    )


def _evaluate(task: _Task, run: RunOptions, common: Common, *, leads: bool) -> None:
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation import audit, robustness_curve, save_result
    from cpr_wrap.metrics import PAPER_ALPHAS
    from cpr_wrap.report import make_gallery, save_gallery

    name = run.name or task.name
    out = run.out or Path("runs") / re.sub(r"[^\w.+-]", "-", name)
    _check_free(out, task, run)
    store = run.store or out / "store"
    with resumable(f"finished work is in {store}"):
        found = robustness_curve(
            task.model,
            task.data.images,
            task.data.labels,
            task.eps,
            alphas=run.alphas or PAPER_ALPHAS,
            budget=task.plan,
            extras=task.extras,
            seed=run.seed,
            batch_size=run.batch_size,
            block_size=run.block_size,
            store=store,
            norm=task.norm,
            indices=task.data.indices.tolist(),
            points=run.points,
            donors=task.data.name if run.donors == "train" else run.donors,
            ablation=run.ablation,
            certify=run.certify,
            progress=True,
            dtype=run.dtype,
            compile=run.compile,
            channels_last=run.channels_last,
        )
        if not leads:
            return
        calibration = None if task.calibration is None else task.calibration.facts
        found = replace(found, about=_about(task, name, common), calibration=calibration)
        if run.audit:
            with busy("auditing"):
                found = replace(found, checks=audit(task.model, found, seed=run.seed))
    folder = save_result(found, out)
    save_gallery(make_gallery(task.model, found), folder)
    _print(found, folder, common)
    if any(check.passed is False for check in found.checks or ()):
        raise typer.Exit(CHECK_FAILED)


def _check_free(out: Path, task: _Task, run: RunOptions) -> None:
    """Refuse a folder that holds another run; the same run may be made again."""
    from cpr_wrap.engine.evaluate import stage_text
    from cpr_wrap.engine.store import weights_digest
    from cpr_wrap.evaluation.assemble import images_digest, rule_facts
    from cpr_wrap.evaluation.result import RESULT, read_file

    if run.overwrite or not (out / RESULT).exists():
        return
    there = read_file(out)
    if there.settings is not None and there.provenance is not None:
        settings, provenance = there.settings, there.provenance
        rule = task.model.rule
        stages = [stage_text(each) for each in (*task.plan.stages(rule, task.eps), *task.extras)]
        ours = (
            *(task.eps, task.norm, run.seed, rule_facts(rule).config, stages),
            images_digest(task.data.images, task.data.labels, task.data.indices),
            weights_digest(task.model),
        )
        theirs = (
            *(there.eps, there.norm, settings.seed, settings.rule.config),
            list(settings.stages[-len(stages) :]),  # points that were given come before
            *(provenance.data, provenance.weights),
        )
        if ours == theirs:
            return
    raise typer.BadParameter(
        f"{out} holds another run, {there.about.name or 'without a name'}; choose another --out, "
        "or pass --overwrite to replace it"
    )


def _about(task: _Task, name: str, common: Common) -> About:
    from cpr_wrap.metrics import About

    return About(
        name=name,
        model=task.address,
        network=task.network,
        imports=tuple(common.imports or ()),
        dataset=task.data.name,
        part=task.data.part,
        dataset_note=task.data.note,
        command=command_line(),
    )


def _print(found: RobustnessCurve, folder: Path, common: Common) -> None:
    from cpr_wrap.evaluation.result import read_json
    from cpr_wrap.metrics.plausibility import implied

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
