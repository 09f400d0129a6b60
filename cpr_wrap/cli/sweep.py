"""`cpr-wrap sweep`: models × rules × eps × norms × budgets in one command, with a leaderboard."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import (
    about,
    calibrated,
    load_images,
    pick_device,
    several_processes,
    short_name,
    threat_eps,
    validation_images,
    warn_of_open_rule,
)
from cpr_wrap.cli._run import CHECK_FAILED, mention, resumable
from cpr_wrap.cli._settings import rule_options
from cpr_wrap.cli.options import (
    BatchSize,
    Common,
    DataOptions,
    ModelDir,
    NetworkName,
    Overwrite,
    Seed,
    Validation,
    file_name,
    fraction,
    option,
    whole_numbers,
)

if TYPE_CHECKING:
    from cpr_wrap.data import ImageData
    from cpr_wrap.evaluation import Estimate
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.metrics import CalibrationFacts, RobustnessCurve
    from cpr_wrap.rule import RejectionRule
    from cpr_wrap.selective import SelectiveClassifier
    from cpr_wrap.zoo import ZooModel

_CALIBRATE = "calibrate"
_LISTS = ("models", "rules", "eps", "norms", "budgets")
_PATHS = ("model_dir", "data_dir", "class_map")


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What to combine; a TOML file has the same names."""

    models: Annotated[list[str] | None, option("Address of a model; repeatable.", "--model")] = None
    rules: Annotated[
        list[str] | None,
        option(
            "NAME or NAME:SETTING=VALUE,…, also module:Class and calibrate=RATE; repeatable.",
            "--rule",
        ),
    ] = None
    eps: Annotated[list[str] | None, option("Perturbation budget, e.g. 8/255; repeatable.")] = None
    norms: Annotated[list[str] | None, option("Norm; repeat.", "--norm")] = None
    budgets: Annotated[list[str] | None, option("Budget of attacks; repeatable.", "--budget")] = (
        None
    )
    validation: Validation = None
    network: NetworkName = None
    model_dir: ModelDir = None


def sweep(
    plan: Annotated[
        Path | None,
        typer.Argument(help="TOML file with models, rules, eps, …", show_default=False),
    ] = None,
    *,
    combine: SweepOptions,
    data: DataOptions,
    seed: Seed = 0,
    batch_size: BatchSize = None,
    audit: Annotated[bool, option("Audit every evaluation.", "--audit")] = False,
    estimate: Annotated[bool, option("Only estimate the cost.", "--estimate")] = False,
    out: Annotated[Path, typer.Option(help="Folder for all result folders.")] = Path("runs"),
    overwrite: Overwrite = False,
    common: Common,
) -> None:
    """Evaluate every combination of models, rules, eps, norms and budgets.

    Each combination gets a result folder below --out. The sweep is resumable by the same command,
    also under torchrun. It writes results.csv, one row per run, and the leaderboard report.html.

    Example: cpr-wrap sweep --model bundled:mnist-compact-at --rule cpr --rule none --eps 0.3
    --budget quick --num 20 --out runs/first
    """
    combine, data = _planned(plan, combine, data)
    device = pick_device(common.device)
    with several_processes(device) as leads:
        from cpr_wrap.engine.progress import busy
        from cpr_wrap.evaluation.sweep import sweep as evaluate

        tasks = list(_tasks(combine, data, device, common))
        mention(f"{len(tasks)} runs")
        if estimate:
            with busy("estimating"):
                costs = {t.about.name: t.estimate(batch_size, audited=audit) for t in tasks}
            if leads:
                _show_estimates(costs, common)
            return
        with resumable(f"finished runs are in {out}"):
            curves = evaluate(
                tasks,
                out,
                audited=audit,
                seed=seed,
                batch_size=batch_size,
                overwrite=overwrite,
                tell=mention,
            )
        if leads:
            _write(curves, out, common)
    if any(curve.audited is False for curve in curves):
        raise typer.Exit(CHECK_FAILED)


def _planned(
    plan: Path | None, combine: SweepOptions, data: DataOptions
) -> tuple[SweepOptions, DataOptions]:
    """The options, completed from the file; what is typed goes first."""
    found: dict[str, Any] = {}
    if plan is not None:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        try:
            found = toml.loads(plan.read_text())
        except toml.TOMLDecodeError as error:
            raise typer.BadParameter(f"{plan}: {error}") from error
    groups: list[Any] = [combine, data]
    known = {field.name: place for place, group in enumerate(groups) for field in fields(group)}
    for name, value in found.items():
        if name not in known:
            raise typer.BadParameter(f"{plan}: unknown {name!r}; expected {', '.join(known)}")
        group = groups[known[name]]
        if getattr(group, name) in (None, False):
            groups[known[name]] = replace(group, **{name: _read(name, value)})
    if not groups[0].models:
        raise typer.BadParameter("expected at least one --model, or models in a TOML file")
    return groups[0], groups[1]


def _read(name: str, value: Any) -> Any:
    """A value of a TOML file as the option of that name has it."""
    if name in _LISTS:
        return [str(each) for each in (value if isinstance(value, list) else [value])]
    if name == "indices" and isinstance(value, str):
        return whole_numbers(value)
    return Path(value) if name in _PATHS and isinstance(value, str) else value


def _tasks(combine: SweepOptions, data: DataOptions, device: Any, common: Common) -> Iterator[Task]:
    """All combinations; every model and data set is loaded once."""
    from cpr_wrap._text import eps_text
    from cpr_wrap.evaluation.curve import check_threat, find_budget
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.geometry import threat
    from cpr_wrap.zoo import load_network

    budgets = {name: find_budget(name) for name in combine.budgets or ["standard"]}
    norms = [threat(norm).name for norm in combine.norms or ()]
    for text in combine.rules or ():
        _read_rule(text)  # a mistake in the last one is better found before the first
    held: dict[Any, ImageData] = {}
    for address in combine.models or ():
        # Weights in a file need a network; other addresses bring their own.
        network = combine.network if address.startswith("local:") else None
        facts = load_network(address, network=network, model_dir=combine.model_dir)
        key = (data.dataset or facts.dataset, facts.transform, facts.channels)
        images = held[key] = held.get(key) or load_images(data, facts)
        sizes = [fraction(each) for each in combine.eps or ()] or [threat_eps(None, facts)]
        for text, norm in product(combine.rules or [""], norms or [facts.norm or "Linf"]):
            held_out = partial(validation_images, data, facts, combine.validation, images)
            model, calibration = _under(text, facts, norm, held_out, device)
            for eps, (name, budget) in product(sizes, budgets.items()):
                check_threat(threat(norm), eps, images.images)
                rule = text or model.rule.name
                words = (short_name(address), rule, f"{norm}-{eps_text(eps)}", name)
                yield Task(
                    about=about(file_name("+".join(words)), facts, images, network, common),
                    model=model,
                    data=images,
                    eps=eps,
                    norm=norm,
                    budget=budget,
                    calibration=calibration,
                )


def _read_rule(text: str) -> tuple[type[RejectionRule], dict[str, Any], float | None]:
    """Read `NAME`, `module:Class` or either with settings: its class, these, and a rate."""
    from cpr_wrap.rule import find_rule

    name, _, rest = text.rpartition(":")
    if "=" not in rest:
        name, rest = text, ""
    kind, rate = find_rule(name), None
    pairs = [pair for pair in rest.split(",") if pair]
    for pair in [pair for pair in pairs if pair.partition("=")[0].strip() == _CALIBRATE]:
        pairs.remove(pair)
        rate = fraction(pair.partition("=")[2])
    return kind, rule_options(kind, pairs), rate


def _under(
    text: str, facts: ZooModel, norm: str, held_out: Callable[[], ImageData], device: Any
) -> tuple[SelectiveClassifier, CalibrationFacts | None]:
    """A network under a rule such as `cpr:radius=0.1,steps=20` or `confidence:calibrate=0.01`."""
    from cpr_wrap.zoo import wrap

    if not text:
        return wrap(facts, device=device), None
    kind, settings, rate = _read_rule(text)
    if "norm" in {field.name for field in fields(kind)}:
        settings = {"norm": norm, **settings}
    model = wrap(facts, kind.name, device=device, **settings)
    if rate is None:
        warn_of_open_rule(model)
        return model, None
    model, record = calibrated(model, rate, held_out())
    if record.note:
        mention(f"note: {text}: {record.note}")
    return model, record.facts


def _show_estimates(costs: dict[str, Estimate], common: Common) -> None:
    if common.as_json:
        _show.print_json(costs)
        return
    for name, cost in costs.items():
        typer.echo(f"{name}: {cost.passes:,.0f} passes, {_show.duration(cost.seconds)}")
    total = _show.duration(sum(cost.seconds for cost in costs.values()))
    typer.echo(f"about {total} in all for {len(costs)} runs")


def _write(curves: list[RobustnessCurve], out: Path, common: Common) -> None:
    """The tidy table and the page, and the table on the screen."""
    from cpr_wrap.cli.compare import show, table_csv
    from cpr_wrap.evaluation import results
    from cpr_wrap.report import write_report

    rows = results([out / curve.about.name for curve in curves]).rows()
    (out / "results.csv").write_text(table_csv(rows) + "\n")
    page = write_report([out / curve.about.name for curve in curves], out / "report.html")
    if common.as_json:
        _show.print_json(rows)
        return
    show(curves)
    typer.echo(f"written: {out / 'results.csv'} and {page}")
