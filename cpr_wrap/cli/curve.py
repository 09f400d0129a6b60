"""`cpr-wrap curve`: the robustness curve of a model, from the attack to the result folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    warn_of_open_rule,
)
from cpr_wrap.cli._processes import several_processes
from cpr_wrap.cli._run import command_line, mention, resumable
from cpr_wrap.cli.options import (
    Address,
    BatchSize,
    Common,
    DataOptions,
    Eps,
    ModelOptions,
    Seed,
    fractions,
    number,
    option,
)

if TYPE_CHECKING:
    from cpr_wrap.data import ImageData
    from cpr_wrap.metrics import RobustnessCurve
    from cpr_wrap.selective import SelectiveClassifier


def _checked(alphas: str | None) -> str | None:
    """Refuse what is no list of numbers before any work is done."""
    if alphas is not None:
        fractions(alphas)
    return alphas


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to evaluate.

    Attributes:
        budget: How hard to attack.
        calibrate: Share of right answers that the rule may reject.
        alphas: Where the curve is tabulated.
        ablation: Whether to run every attack alone too.
        audit: Whether to ask if the evaluation itself is believable.
        estimate: Whether only to say what it would cost.
        seed: Seed of all random starts.
        batch_size: Rows in a batch.
        block_size: Images that are worked on together.
        dtype: Precision to search in.
        compile: Whether to search with a compiled network.
        channels_last: Whether to search with a network in that memory format.
        out: The result folder.
        store: Where finished work is kept.
        name: What to call the run.
    """

    budget: Annotated[
        str,
        typer.Option(help="quick, standard, paper or published."),
    ] = "standard"
    calibrate: Annotated[
        float | None,
        number("First set the rule to reject this share of right answers."),
    ] = None
    alphas: Annotated[
        str | None,
        option("Where to tabulate the curve, e.g. 0,0.05,0.5,1.", callback=_checked),
    ] = None
    ablation: Annotated[bool, option("Run each attack alone too.", "--ablation")] = False
    audit: Annotated[bool, option("Check the evaluation itself.", "--audit")] = False
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
    store: Annotated[
        Path | None,
        option("Where finished work is kept for a rerun; by default OUT/store."),
    ] = None
    name: Annotated[str | None, option("What to call the run in tables.")] = None


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A model, its images and the budget of the adversary."""

    address: str
    model: SelectiveClassifier
    data: ImageData
    eps: float
    norm: str
    calibration: dict[str, Any] | None

    @property
    def name(self) -> str:
        return f"{self.address.rpartition(':')[2].rpartition('/')[2]}+{self.model.rule.name}"

    @property
    def sentence(self) -> str:
        from cpr_wrap.report.wording import eps_text

        return (
            f"{self.address}, {_show.describe_rule(self.model.rule)}, {len(self.data)} images of "
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

    Example: cpr-wrap curve robustbench:Rice2020Overfitting --dataset cifar10 --eps 8/255
    --num 1000 --out runs/rice
    """
    device = pick_device(common.device)
    with several_processes(device) as leads:
        task = _prepare(
            address, eps, model, data, run.calibrate, load_model(address, model, device)
        )
        mention(task.sentence)
        work = _estimate if run.estimate else _evaluate
        work(task, run, common, leads=leads)


def _prepare(
    address: str,
    eps: float | None,
    model: ModelOptions,
    data: DataOptions,
    rate: float | None,
    loaded: Loaded,
) -> _Task:
    eps = threat_eps(eps, loaded.facts)
    images = load_images(data, loaded.facts)
    selective, calibration = loaded.model, None
    if rate is not None:
        selective, record = calibrated(selective, rate, data, loaded.facts)
        calibration = _show.plain(record)
    warn_of_open_rule(selective)
    norm = threat_norm(model, loaded.facts)
    return _Task(
        address=address, model=selective, data=images, eps=eps, norm=norm, calibration=calibration
    )


def _estimate(task: _Task, run: RunOptions, common: Common, *, leads: bool) -> None:
    from cpr_wrap.evaluation import estimate_cost

    cost = estimate_cost(
        task.model,
        task.data.images,
        task.data.labels,
        task.eps,
        budget=run.budget,
        batch_size=run.batch_size,
        norm=task.norm,
    )
    if not leads:
        return
    if common.as_json:
        _show.print_json(cost)
        return
    typer.echo(
        f"about {cost.passes:,.0f} passes ({cost.passes_per_image:,.0f} an image) and "
        f"{_show.duration(cost.seconds)} for {cost.images} images with budget {run.budget}, "
        f"from {cost.probed} of them"
    )


def _evaluate(task: _Task, run: RunOptions, common: Common, *, leads: bool) -> None:
    from cpr_wrap.evaluation import robustness_curve
    from cpr_wrap.metrics import PAPER_ALPHAS

    out = run.out or Path("runs") / re.sub(r"[^\w.+-]", "-", run.name or task.name)
    store = run.store or out / "store"
    with resumable(f"finished work is in {store}"):
        found = robustness_curve(
            task.model,
            task.data.images,
            task.data.labels,
            task.eps,
            alphas=fractions(run.alphas) if run.alphas else PAPER_ALPHAS,
            budget=run.budget,
            seed=run.seed,
            batch_size=run.batch_size,
            block_size=run.block_size,
            store=store,
            norm=task.norm,
            indices=task.data.indices.tolist(),
            ablation=run.ablation,
            progress=True,
            dtype=run.dtype,
            compile=run.compile,
            channels_last=run.channels_last,
        )
        if not leads:
            return
        checks = _audit(task, found, run.seed) if run.audit else None
    folder = _save(task, found, out, run.name or task.name, checks)
    _print(found, folder, common)


def _audit(task: _Task, found: RobustnessCurve, seed: int) -> list[Any]:
    from cpr_wrap.evaluation import audit

    checks = audit(task.model, task.data.images, task.data.labels, task.eps, found, seed=seed)
    return [_show.plain(check) for check in checks]


def _save(
    task: _Task, found: RobustnessCurve, out: Path, name: str, checks: list[Any] | None
) -> Path:
    from cpr_wrap.evaluation import save_result
    from cpr_wrap.report import make_gallery, save_gallery

    extra: dict[str, Any] = {
        "name": name,
        "model": task.address,
        "dataset": task.data.name,
        "part": task.data.part,
        "dataset_note": task.data.note,
        "command": command_line(),
        "calibration": task.calibration,
        "audit": checks,
    }
    folder = save_result(found, out, extra=extra)
    save_gallery(make_gallery(task.model, found), folder)
    return folder


def _print(found: RobustnessCurve, folder: Path, common: Common) -> None:
    from cpr_wrap.evaluation import load_result

    details = load_result(folder).details
    if common.as_json:
        apart = ("points", "provenance")
        _show.print_json({k: v for k, v in details.items() if k not in apart} | {"folder": folder})
        return
    _show.print_curve(found)
    typer.echo(_show.clean_sentence(found))
    typer.echo(_show.cost_sentence(found))
    if details.get("audit"):
        _show.print_checks(details["audit"])
    typer.echo(f"written to {folder}; next: cpr-wrap report {folder}")
