"""`cpr-wrap attack`: one attack alone, and how many of its points hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import (
    load_images,
    load_model,
    pick_device,
    threat_eps,
    threat_norm,
    warn_of_open_rule,
)
from cpr_wrap.cli._run import CHECK_FAILED
from cpr_wrap.cli.options import (
    Address,
    BatchSize,
    Common,
    DataOptions,
    Eps,
    ModelOptions,
    Seed,
    option,
)

if TYPE_CHECKING:
    from cpr_wrap.metrics import RobustnessCurve
    from cpr_wrap.selective import SelectiveClassifier


def attack(
    address: Address,
    name: Annotated[
        str,
        typer.Argument(
            help="The attack: see `cpr-wrap list attacks`, or module:name.", show_default=False
        ),
    ],
    *,
    eps: Eps = None,
    iterations: Annotated[
        int | None, option("Steps of each restart of our attacks; 50 by default.", min=1)
    ] = None,
    restarts: Annotated[
        int | None,
        option(
            "Random restarts of our attacks, in addition to the clean image; 1 by default.", min=0
        ),
    ] = None,
    seed: Seed = 0,
    batch_size: BatchSize = None,
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Run one attack (ours, AutoAttack, Foolbox, your own) and count what it breaks.

    The attack only proposes points. They are projected into the ball, judged by the model, and
    checked again by independent code.

    Example: cpr-wrap attack bundled:mnist-compact-at CHCMOA --num 50
    """
    from cpr_wrap.attacks.ensemble import Listed
    from cpr_wrap.cli._attacks import find_attack
    from cpr_wrap.evaluation import robustness_curve

    loaded = load_model(address, model, pick_device(common.device))
    eps = threat_eps(eps, loaded.facts)
    stage = find_attack(name, loaded.model.rule, steps=iterations, restarts=restarts)
    images = load_images(data, loaded.facts)
    warn_of_open_rule(loaded.model)
    found = robustness_curve(
        loaded.model,
        images.images,
        images.labels,
        eps,
        budget=Listed(name=f"only {stage.name}", listed=(stage,)),
        seed=seed,
        batch_size=batch_size,
        norm=threat_norm(model, loaded.facts),
        indices=images.indices.tolist(),
        progress=True,
    )
    counts = _count(loaded.model, found, stage.name)
    _print({"model": address, "rule": loaded.model.rule, **counts}, common)
    if counts["problems"]:
        raise typer.Exit(CHECK_FAILED)


def _count(model: SelectiveClassifier, found: RobustnessCurve, name: str) -> dict[str, Any]:
    from cpr_wrap.evaluation import verify_curve

    records = found.records
    right = records.clean_label == records.label
    mistakes = right & records.outer_broken
    rejections = right & ~records.outer_broken & records.rejected_radius.isfinite()
    checked = verify_curve(model, found)
    return {
        "attack": name,
        "norm": records.norm,
        "eps": records.eps,
        "images": len(records),
        "right_when_clean": int(right.sum()),
        "accepted_mistakes": int(mistakes.sum()),
        "rejections": int(rejections.sum()),
        "resisted": int((right & ~mistakes & ~rejections).sum()),
        "passes_per_image": found.passes_per_image,
        "seconds": sum(stage.seconds for stage in found.passes),
        "problems": checked.problems,
    }


def _print(counts: dict[str, Any], common: Common) -> None:
    if common.as_json:
        _show.print_json(counts)
        return
    typer.echo(f"{counts['right_when_clean']} of {counts['images']} images are right when clean")
    typer.echo(
        f"{counts['attack']} made {counts['accepted_mistakes']} of them accepted and wrong and "
        f"{counts['rejections']} rejected, within {counts['norm']} {counts['eps']:g}; "
        f"{counts['resisted']} resisted"
    )
    for problem in counts["problems"]:
        typer.echo(f"does not hold: {problem}")
    if not counts["problems"]:
        typer.echo("every recorded point was confirmed")
    typer.echo(
        f"{counts['passes_per_image']:,.0f} passes per image, {_show.duration(counts['seconds'])}"
    )
