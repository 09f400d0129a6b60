"""`cpr-wrap sweep`: models × rules × eps × norms × budgets in one command, with a leaderboard."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cpr_wrap.cli import _load, _show, options
from cpr_wrap.cli._run import CHECK_FAILED, mention, resumable
from cpr_wrap.cli.options import Common, DataOptions, ModelOptions, argument, fraction, option

if TYPE_CHECKING:
    from cpr_wrap.data import ImageData
    from cpr_wrap.evaluation import Estimate
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.metrics import RobustnessCurve

_LISTS = ("models", "rules", "eps", "norms", "budgets")
_PATHS = ("model_dir", "data_dir", "class_map")


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What to combine; a TOML file has the same names."""

    models: list[str] | None = option("Address of a model; repeatable.", "--model")
    rules: list[str] | None = option(
        "NAME or NAME:SETTING=VALUE,…, also module:Class and calibrate=RATE; repeatable.", "--rule"
    )
    eps: list[str] | None = option("Perturbation budget, e.g. 8/255; repeatable.")
    norms: list[str] | None = option("Norm; repeatable.", "--norm")
    budgets: list[str] | None = option("Budget of attacks; repeatable.", "--budget")
    validation: str | None = options.validation()
    network: str | None = options.architecture()
    model_dir: Path | None = options.weights_folder()


def sweep(
    plan: Path | None = argument("TOML file with models, rules, eps, …", None),
    *,
    combine: SweepOptions,
    data: DataOptions,
    seed: int = options.seed(),
    batch_size: int | None = options.batch_size(),
    audit: bool = option("Audit every evaluation.", default=False),
    estimate: bool = option("Only estimate the cost.", default=False),
    out: Path = option("Folder for all result folders.", default=Path("runs")),
    overwrite: bool = options.overwrite(),
    common: Common,
) -> None:
    """Evaluate every combination of models, rules, eps, norms and budgets.

    Each combination gets a result folder below --out. The sweep is resumable by the same command,
    also under torchrun. It writes results.csv, one row per run, and the leaderboard report.html.

    Example: cpr-wrap sweep --model bundled:mnist-compact-at --rule cpr --rule none --eps 0.3
    --budget quick --num 20 --out runs/first
    """
    combine, data = _planned(plan, combine, data)
    device = _load.pick_device(common.device)
    with _load.several_processes(device) as leads:
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
            how: dict[str, Any] = {"audited": audit, "seed": seed, "batch_size": batch_size}
            curves = evaluate(tasks, out, overwrite=overwrite, tell=mention, **how)
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
        return options.whole_numbers(value)
    return Path(value) if name in _PATHS and isinstance(value, str) else value


def _tasks(combine: SweepOptions, data: DataOptions, device: Any, common: Common) -> Iterator[Task]:
    """All combinations; every model and data set is loaded once."""
    from cpr_wrap._text import eps_text
    from cpr_wrap.evaluation.curve import find_budget
    from cpr_wrap.evaluation.preflight import check_threat
    from cpr_wrap.geometry import threat
    from cpr_wrap.zoo import load_network

    budgets = {name: find_budget(name) for name in combine.budgets or ["standard"]}
    norms: list[str | None] = [threat(norm).name for norm in combine.norms or ()]
    for text in combine.rules or ():
        _read_rule(text)  # a mistake in the last one is better found before the first
    held: dict[Any, ImageData] = {}
    for address in combine.models or ():
        # Weights in a file need a network; other addresses bring their own.
        network = combine.network if address.startswith("local:") else None
        facts = load_network(address, network=network, model_dir=combine.model_dir)
        key = (data.dataset or facts.dataset, facts.transform, facts.channels)
        images = held[key] = held.get(key) or _load.load_images(data, facts)
        sizes = [fraction(each) for each in combine.eps or ()] or [_load.threat_eps(None, facts)]
        for text, wanted in product(combine.rules or [""], norms or [None]):
            rule, rate = _read_rule(text, wanted) if text else (ModelOptions(norm=wanted), None)
            model, norm = _load.under_rule(facts, rule, device), _load.threat_norm(rule, facts)
            subject = _load.Subject(
                model=model, facts=facts, images=images, eps=sizes[0], norm=norm
            ).calibrated(rate, combine.validation, data)
            if subject.calibration is not None and subject.calibration.note:
                mention(f"note: {text}: {subject.calibration.note}")
            for eps, (name, budget) in product(sizes, budgets.items()):
                check_threat(threat(norm), eps, images.images)
                words = (text or model.rule.name, f"{norm}-{eps_text(eps)}", name)
                run = options.file_name(_load.run_name(address, *words))
                yield replace(subject, eps=eps).task(run, budget, common, network)


def _read_rule(text: str, norm: str | None = None) -> tuple[ModelOptions, float | None]:
    """Read `cpr:radius=0.1,steps=20` or `module:Class:calibrate=0.01`: the rule, and the rate."""
    from cpr_wrap.rule import find_rule

    name, _, rest = text.rpartition(":")
    if "=" not in rest:
        name, rest = text, ""
    pairs, rate = [pair for pair in rest.split(",") if pair], None
    for pair in [pair for pair in pairs if pair.partition("=")[0].strip() == "calibrate"]:
        pairs.remove(pair)
        rate = fraction(pair.partition("=")[2])
    _load.rule_options(find_rule(name), pairs)  # refuses what cannot be read
    return ModelOptions(rule=name, settings=pairs, norm=norm), rate


def _show_estimates(costs: dict[str, Estimate], common: Common) -> None:
    lines = [
        f"{name}: {cost.passes:,.0f} passes, {_show.duration(cost.seconds)}"
        for name, cost in costs.items()
    ]
    total = _show.duration(sum(cost.seconds for cost in costs.values()))
    _show.answer(common, costs, *lines, f"about {total} in all for {len(costs)} runs")


def _write(curves: list[RobustnessCurve], out: Path, common: Common) -> None:
    """The tidy table and the page, and the table on the screen."""
    from cpr_wrap.cli.results import table_csv
    from cpr_wrap.evaluation import results
    from cpr_wrap.report import ranking, write_report

    folders = [out / curve.about.name for curve in curves]
    rows = results(folders).rows()
    (out / "results.csv").write_text(table_csv(rows) + "\n")
    page = write_report(folders, out / "report.html")
    tables = "\n\n".join(table.render("text") for table, _ in ranking(curves))
    _show.answer(common, rows, tables, f"written: {out / 'results.csv'} and {page}")
