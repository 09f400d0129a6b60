"""`cpr-wrap sweep`: models × rules × eps × norms × budgets in one command, with a leaderboard."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import typer

from cpr_wrap._text import eps_text
from cpr_wrap.cli import _load, _show
from cpr_wrap.cli._run import CHECK_FAILED, answer, mention, resumable
from cpr_wrap.cli.commands import Combinations, Sweep
from cpr_wrap.cli.options import ModelOptions, fraction, whole_numbers
from cpr_wrap.cli.results import table_csv
from cpr_wrap.data import ImageData
from cpr_wrap.engine.progress import busy
from cpr_wrap.evaluation import Estimate, results
from cpr_wrap.evaluation import sweep as evaluations
from cpr_wrap.evaluation.curve import find_budget
from cpr_wrap.evaluation.preflight import check_threat
from cpr_wrap.geometry import threat
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report import ranking, write_report
from cpr_wrap.rule import find_rule
from cpr_wrap.zoo import load_network

_LISTS = ("models", "rules", "eps", "norms", "budgets")
_PATHS = ("model_dir", "data_dir", "class_map")


def sweep(options: Sweep) -> None:
    """Evaluate all combinations, or only estimate the cost."""
    options, out = planned(options), options.out
    device = _load.pick_device(options.device)
    with _load.several_processes(device) as leads:
        tasks = list(make_tasks(options, device))
        mention(f"{len(tasks)} runs")
        if options.estimate:
            how: dict[str, Any] = {"audited": options.audit}
            with busy("estimating"):
                costs = {t.about.name: t.estimate(options.batch_size, **how) for t in tasks}
            if leads:
                _show_estimates(costs, options)
            return
        with resumable(f"finished runs are in {out}"):
            curves = evaluations.sweep(
                tasks,
                out,
                audited=options.audit,
                seed=options.seed,
                batch_size=options.batch_size,
                overwrite=options.overwrite,
                tell=mention,
            )
        if leads:
            _write(curves, options)
    if any(curve.audited is False for curve in curves):
        raise typer.Exit(CHECK_FAILED)


def planned(options: Sweep) -> Sweep:
    """The options, completed from the file; what is typed goes first."""
    found: dict[str, Any] = {}
    if options.plan is not None:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        try:
            found = toml.loads(options.plan.read_text())
        except toml.TOMLDecodeError as error:
            raise typer.BadParameter(f"{options.plan}: {error}") from error
    known = [field.name for field in fields(Combinations)]
    for name, value in found.items():
        if name not in known:
            raise typer.BadParameter(
                f"{options.plan}: unknown {name!r}; expected {', '.join(known)}"
            )
        given = getattr(options, name)
        if given is None or given is False:  # 0 is a number that somebody typed
            options = replace(options, **{name: _read(name, value)})
    if not options.models:
        raise typer.BadParameter("expected at least one --model, or models in a TOML file")
    return options


def _read(name: str, value: Any) -> Any:
    """A value of a TOML file as the option of that name has it."""
    if name in _LISTS:
        return [str(each) for each in (value if isinstance(value, list) else [value])]
    if name == "indices" and isinstance(value, str):
        return whole_numbers(value)
    return Path(value) if name in _PATHS and isinstance(value, str) else value


def make_tasks(options: Sweep, device: torch.device) -> Iterator[evaluations.Task]:
    """All combinations; every model and data set is loaded once."""
    budgets = {name: find_budget(name) for name in options.budgets or ["standard"]}
    norms: list[str | None] = [threat(norm).name for norm in options.norms or ()]
    for text in options.rules or ():
        read_rule(text)  # a mistake in the last one is better found before the first
    held: dict[Any, ImageData] = {}
    for address in options.models or ():
        # Weights in a file need a network; other addresses bring their own.
        network = options.network if address.startswith("local:") else None
        own = replace(options, network=network)
        facts = load_network(address, network=network, model_dir=options.model_dir)
        key = (options.dataset or facts.dataset, facts.transform, facts.channels)
        images = held[key] = held.get(key) or _load.load_images(options, facts)
        sizes = [fraction(each) for each in options.eps or ()] or [_load.threat_eps(None, facts)]
        for text, wanted in product(options.rules or [""], norms or [None]):
            settings, rate = read_rule(text) if text else ({}, None)
            model = ModelOptions(address=address, norm=wanted, **settings)
            loaded = _load.Loaded(_load.under_rule(facts, model, device), facts)
            norm = _load.threat_norm(model, facts)
            task = _load.make_task(own, loaded, images, sizes[0], norm)
            task = _load.calibrated_task(task, rate, options, facts)
            if task.calibration is not None and task.calibration.note:
                mention(f"note: {text}: {task.calibration.note}")
            for eps, (name, budget) in product(sizes, budgets.items()):
                check_threat(threat(norm), eps, images.images)
                words = (text or task.model.rule.name, f"{norm}-{eps_text(eps)}", name)
                about = replace(task.about, name=_load.file_name(_load.run_name(address, *words)))
                yield replace(task, eps=eps, budget=budget, about=about)


def read_rule(text: str) -> tuple[dict[str, Any], float | None]:
    """Read `cpr:radius=0.1,steps=20` or `module:Class:calibrate=0.01`: the rule, and the rate."""
    name, _, rest = text.rpartition(":")
    if "=" not in rest:
        name, rest = text, ""
    pairs, rate = [pair for pair in rest.split(",") if pair], None
    for pair in [pair for pair in pairs if pair.partition("=")[0].strip() == "calibrate"]:
        pairs.remove(pair)
        rate = fraction(pair.partition("=")[2])
    _load.rule_options(find_rule(name), pairs)  # refuses what cannot be read
    return {"rule": name, "settings": pairs}, rate


def _show_estimates(costs: dict[str, Estimate], options: Sweep) -> None:
    lines = [
        f"{name}: {cost.passes:,.0f} passes, {_show.duration(cost.seconds)}"
        for name, cost in costs.items()
    ]
    total = _show.duration(sum(cost.seconds for cost in costs.values()))
    answer(options, costs, *lines, f"about {total} in all for {len(costs)} runs")


def _write(curves: list[RobustnessCurve], options: Sweep) -> None:
    """The tidy table and the page, and the table on the screen."""
    folders = [options.out / curve.about.name for curve in curves]
    rows, file = results(folders).rows(), options.out / "results.csv"
    file.write_text(table_csv(rows) + "\n")
    page = write_report(folders, options.out / "report.html")
    tables = "\n\n".join(table.render("text") for table, _ in ranking(curves))
    answer(options, rows, tables, f"written: {file} and {page}")
