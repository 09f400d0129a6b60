"""`cpr-wrap bench`: how much of the machine an evaluation uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import load_images, load_model, pick_device, threat_eps
from cpr_wrap.cli.options import Common, DataOptions, Eps, ModelOptions, option

if TYPE_CHECKING:
    from cpr_wrap.evaluation.benchmark import Comparison, Figures, Growth


def bench(
    address: Annotated[
        str, typer.Argument(help="A model.", metavar="ADDRESS")
    ] = "bundled:mnist-compact-at",
    *,
    eps: Eps = None,
    budget: Annotated[str, typer.Option(help="quick, standard, paper or published.")] = "quick",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in a batch.")] = 128,
    growth: Annotated[
        bool, option("Also the same images five times over: time and memory.", "--growth")
    ] = False,
    naive: Annotated[
        bool, option("Also a straightforward loop of the same attacks (takes long).", "--naive")
    ] = False,
    paper: Annotated[
        bool, option("Also the paper's protocol, shortened (takes very long).", "--paper")
    ] = False,
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Measure bare passes, one prediction, and a whole evaluation, as ratios in one run.

    The bare time of an evaluation is its forwards and backwards at the speed of the network alone.
    Processor times are given too: they don't mind what else the machine does.

    Example: cpr-wrap bench bundled:mnist-compact-at --num 100 --growth
    """
    from cpr_wrap.evaluation import benchmark

    loaded = load_model(address, model, pick_device(common.device))
    images = load_images(data, loaded.facts)
    task = (loaded.model, images, threat_eps(eps, loaded.facts))
    found: dict[str, Any] = {
        "engine": benchmark.measure(*task, budget=budget, batch_size=batch_size)
    }
    if growth:
        found["growth"] = benchmark.measure_growth(*task, budget=budget, batch_size=batch_size)
    if naive:
        found["naive"] = benchmark.compare_naive(*task, batch_size=batch_size)
    if paper:
        found["paper"] = benchmark.compare_paper(*task, batch_size=batch_size)
    if common.as_json:
        _show.print_json({"model": address, "rule": loaded.model.rule, **found})
        return
    typer.echo(f"{address}, {_show.describe_rule(loaded.model.rule)}, batches of {batch_size}")
    _print(found, budget)


def _print(found: dict[str, Any], budget: str) -> None:
    _show.print_list("engine", _engine(found["engine"], budget))
    if "growth" in found:
        _show.print_list("growth", _growth(found["growth"]))
    for name in ("naive", "paper"):
        if name in found:
            _show.print_list(f"standard beside {name}", _comparison(found[name]))


def _engine(figures: Figures, budget: str) -> dict[str, str]:
    return {
        "forward": f"{1e6 * figures.forward:,.0f} µs an image",
        "input gradient": f"{1e6 * figures.backward:,.0f} µs an image, beside its forward",
        "prediction": f"{1e6 * figures.prediction:,.0f} µs an image, "
        f"{figures.prediction_ratio:.2f} times its bare passes "
        f"({figures.cpu_prediction_ratio:.2f} in processor time)",
        f"budget {budget}": f"{figures.passes_per_image:,.0f} passes an image, "
        f"{_show.duration(figures.seconds)} for {figures.images} images",
        "efficiency": f"{figures.efficiency:.2f}, bare time / time taken "
        f"({figures.cpu_efficiency:.2f} in processor time)",
    }


def _growth(growth: Growth) -> dict[str, str]:
    return {
        "images": f"the same ones {growth.times} times over, for each of them:",
        "passes": f"{growth.passes:.3f} times as many",
        "processor time": f"{growth.cpu:.2f} times as much",
        "working memory": f"{growth.memory:.2f} times as much in all",
    }


def _comparison(both: Comparison) -> dict[str, str]:
    ours, theirs = both.passes_per_image
    alphas = (f"{alpha:g}" for alpha in both.alphas)
    errors = (
        f"{alpha}: {a} and {b}" for alpha, a, b in zip(alphas, both.ours, both.theirs, strict=True)
    )
    return {
        "errors at alpha": f"{', '.join(errors)}; of {both.images}",
        "outer errors": f"{both.outer[0]} and {both.outer[1]}",
        "passes an image": f"{ours:,.0f} and {theirs:,.0f}",
        "time": " and ".join(_show.duration(seconds) for seconds in both.seconds),
        "no fewer errors": "yes" if both.no_fewer else "NO",
    }
