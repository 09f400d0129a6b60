"""`cpr-wrap sweep`: models × rules × eps × norms × budgets in one command, with a leaderboard."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import load_images, pick_device, threat_eps
from cpr_wrap.cli._processes import several_processes
from cpr_wrap.cli._run import command_line, mention, resumable
from cpr_wrap.cli._settings import rule_options
from cpr_wrap.cli.options import BatchSize, Common, DataOptions, Seed, fraction, option

if TYPE_CHECKING:
    from cpr_wrap.data import ImageData
    from cpr_wrap.evaluation import Estimate
    from cpr_wrap.evaluation.sweep import SweepRun
    from cpr_wrap.metrics import CalibrationFacts, RobustnessCurve
    from cpr_wrap.selective import SelectiveClassifier
    from cpr_wrap.zoo import ZooModel

_CHECK_FAILED = 3
_CALIBRATE = "calibrate"


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What to combine; a TOML file has the same names.

    Attributes:
        models: Addresses of models.
        rules: Rules with their settings.
        eps: Budgets of the adversary.
        norms: Norms of these budgets.
        budgets: Budgets of attacks.
    """

    models: Annotated[list[str] | None, option("Address of a model; repeat.", "--model")] = None
    rules: Annotated[
        list[str] | None,
        option("NAME or NAME:SETTING=VALUE,…, also calibrate=RATE; repeat.", "--rule"),
    ] = None
    eps: Annotated[list[str] | None, option("Adversarial budget, e.g. 8/255; repeat.")] = None
    norms: Annotated[list[str] | None, option("Norm; repeat.", "--norm")] = None
    budgets: Annotated[list[str] | None, option("Budget of attacks; repeat.", "--budget")] = None


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
    audit: Annotated[bool, option("Check every evaluation itself.", "--audit")] = False,
    estimate: Annotated[bool, option("Only say what it would cost.", "--estimate")] = False,
    out: Annotated[Path, typer.Option(help="Folder for all result folders.")] = Path("runs"),
    common: Common,
) -> None:
    """Evaluate every combination of models, rules, eps, norms and budgets.

    Each combination has a result folder below --out; the same command goes on after a stop, also
    under torchrun. Writes results.csv, one row a run, and the leaderboard report.html.

    Example: cpr-wrap sweep --model bundled:mnist-compact-at --rule cpr --rule none --eps 0.3
    --budget quick --num 20 --out runs/first
    """
    combine, data = _planned(plan, combine, data)
    device = pick_device(common.device)
    with several_processes(device) as leads:
        from cpr_wrap.evaluation.sweep import sweep as evaluate

        runs = list(_runs(combine, data, device))
        mention(f"{len(runs)} runs")
        if estimate:
            _estimate(
                [run.estimate(batch_size, audited=audit) for run in runs], runs, common, leads
            )
            return
        with resumable(f"finished runs are in {out}"):
            curves = evaluate(
                runs, out, audited=audit, seed=seed, batch_size=batch_size, tell=mention
            )
        if leads:
            _write(curves, out, common)
    if audit and any(curve.audited is False for curve in curves):
        raise typer.Exit(_CHECK_FAILED)


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
            listed = isinstance(group, SweepOptions) and not isinstance(value, list)
            groups[known[name]] = replace(group, **{name: [value] if listed else value})
    if not groups[0].models:
        raise typer.BadParameter("expected at least one --model, or models in a TOML file")
    return groups[0], groups[1]


def _runs(combine: SweepOptions, data: DataOptions, device: Any) -> Iterator[SweepRun]:
    """All combinations; every model and data set is loaded once."""
    from cpr_wrap._text import eps_text
    from cpr_wrap.evaluation.sweep import SweepRun
    from cpr_wrap.geometry import threat
    from cpr_wrap.metrics import About
    from cpr_wrap.zoo import load_network

    held: dict[str, ImageData] = {}
    for address in combine.models or ():
        facts = load_network(address)
        name = data.dataset or facts.dataset or ""
        images = held[name] = held.get(name) or load_images(data, facts)
        norms = combine.norms or [facts.norm or "Linf"]
        sizes = [fraction(each) for each in combine.eps or ()] or [threat_eps(None, facts)]
        for text, norm in product(combine.rules or [""], norms):
            norm = threat(norm).name
            model, calibration = _under(text, facts, norm, data, device)
            for eps, budget in product(sizes, combine.budgets or ["standard"]):
                short = address.rpartition(":")[2].rpartition("/")[2]
                words = [short, text or model.rule.name, f"{norm}-{eps_text(eps)}", budget]
                yield SweepRun(
                    about=About(
                        name=re.sub(r"[^\w.+=-]", "-", "+".join(words)),
                        model=address,
                        dataset=images.name,
                        part=images.part,
                        dataset_note=images.note,
                        command=command_line(),
                        trained_eps=facts.trained_eps,
                    ),
                    model=model,
                    data=images,
                    eps=eps,
                    norm=norm,
                    budget=budget,
                    calibration=calibration,
                )


def _under(
    text: str, facts: ZooModel, norm: str, data: DataOptions, device: Any
) -> tuple[SelectiveClassifier, CalibrationFacts | None]:
    """A network under a rule such as `cpr:radius=0.1,steps=20` or `confidence:calibrate=0.01`."""
    from cpr_wrap.calibration import calibrate
    from cpr_wrap.rule import RULES
    from cpr_wrap.zoo import wrap

    name, _, rest = text.partition(":")
    pairs = [pair for pair in rest.split(",") if pair]
    rates = [pair for pair in pairs if pair.partition("=")[0].strip() == _CALIBRATE]
    settings: dict[str, Any] = {}
    if name:
        kind = RULES[name]
        settings = rule_options(kind, [pair for pair in pairs if pair not in rates])
        if "norm" in {field.name for field in fields(kind)}:
            settings = {"norm": norm, **settings}
    model = wrap(facts, name or None, device=device, **settings)
    if not rates:
        return model, None
    held = load_images(replace(data, num=None), facts, "validation")
    rate = fraction(rates[-1].partition("=")[2])
    found = calibrate(model, held.images.to(device), held.labels.to(device), rate)
    if found.record.note:
        mention(f"note: {text}: {found.record.note}")
    return found.model, found.record.facts


def _estimate(estimates: list[Estimate], runs: list[SweepRun], common: Common, leads: bool) -> None:
    costs = {run.about.name: cost for run, cost in zip(runs, estimates, strict=True)}
    if not leads:
        return
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
