"""`cpr-wrap bench`: how much of the machine an evaluation uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import load_images, load_model, pick_device, threat_eps, threat_norm
from cpr_wrap.cli.options import BudgetName, Common, DataOptions, Eps, ModelOptions

if TYPE_CHECKING:
    from cpr_wrap.evaluation.benchmark import Figures


def bench(
    address: Annotated[
        str, typer.Argument(help="A model.", metavar="ADDRESS")
    ] = "bundled:mnist-compact-at",
    *,
    eps: Eps = None,
    budget: BudgetName = "quick",
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 128,
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Measure bare passes, one prediction, and a whole evaluation, as ratios in one run.

    The bare time of an evaluation is the time of its forward and backward passes alone. Processor
    times are given too, because they do not depend on other work on the machine.

    Example: cpr-wrap bench bundled:mnist-compact-at --num 100
    """
    from cpr_wrap.evaluation import benchmark
    from cpr_wrap.evaluation.curve import find_budget

    plan = find_budget(budget)
    loaded = load_model(address, model, pick_device(common.device))
    images = load_images(data, loaded.facts)
    task = (loaded.model, images, threat_eps(eps, loaded.facts))
    norm = threat_norm(model, loaded.facts)
    figures = benchmark.measure(*task, budget=plan, batch_size=batch_size, norm=norm)
    if common.as_json:
        _show.print_json({"model": address, "rule": loaded.model.rule, "engine": figures})
        return
    typer.echo(f"{address}, {loaded.model.rule.describe()}, batches of {batch_size}")
    _show.print_list("engine", _engine(figures, budget))


def _engine(figures: Figures, budget: str) -> dict[str, str]:
    return {
        "forward": f"{1e6 * figures.forward:,.0f} µs per image",
        "input gradient": f"{1e6 * figures.backward:,.0f} µs per image, without its forward "
        f"({1e6 * figures.smoothed:,.0f} µs smoothed)",
        "prediction": f"{1e6 * figures.prediction:,.0f} µs per image, "
        f"{figures.prediction_ratio:.2f} times its bare passes "
        f"({figures.cpu_prediction_ratio:.2f} in processor time)",
        f"budget {budget}": f"{figures.passes_per_image:,.0f} passes per image, "
        f"{_show.duration(figures.seconds)} for {figures.images} images",
        "efficiency": f"{figures.efficiency:.2f}, bare time / time taken "
        f"({figures.cpu_efficiency:.2f} in processor time)",
    }
