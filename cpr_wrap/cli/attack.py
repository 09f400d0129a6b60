"""`cpr-wrap attack`, `certify` and `bench`: one attack, a proof, or the time that passes take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from cpr_wrap.cli import _load, _show, options
from cpr_wrap.cli._run import CHECK_FAILED, mention
from cpr_wrap.cli.options import Common, DataOptions, ModelOptions, argument, option

if TYPE_CHECKING:
    from cpr_wrap.metrics import RobustnessCurve
    from cpr_wrap.selective import SelectiveClassifier


def attack(
    address: str = options.address(),
    name: str = argument("The attack: see `cpr-wrap list attacks`, or module:name."),
    *,
    eps: float | None = options.eps(),
    iterations: int | None = option("Steps of each restart of our attacks; 50 by default.", min=1),
    restarts: int | None = option(
        "Random restarts of our attacks, in addition to the clean image; 1 by default.", min=0
    ),
    seed: int = options.seed(),
    batch_size: int | None = options.batch_size(),
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

    loaded = _load.load_model(address, model, _load.pick_device(common.device))
    stage = find_attack(name, loaded.model.rule, steps=iterations, restarts=restarts)
    subject = loaded.on_images(eps, model, data)
    _load.warn_of_open_rule(loaded.model)
    budget = Listed(name=f"only {stage.name}", listed=(stage,))
    task = subject.task(stage.name, budget, common, model.network)
    found = task.evaluate(audited=False, seed=seed, batch_size=batch_size)
    counts = _count(loaded.model, found, stage.name)
    content = {"model": address, "rule": loaded.model.rule, **counts}
    _show.answer(common, content, *_sentences(counts))
    if counts["problems"]:
        raise typer.Exit(CHECK_FAILED)


def _count(model: SelectiveClassifier, found: RobustnessCurve, name: str) -> dict[str, Any]:
    from cpr_wrap.evaluation import verify_curve

    records = found.records
    right = records.clean_label == records.label
    mistakes = right & records.outer_broken
    rejections = right & ~records.outer_broken & records.rejected_radius.isfinite()
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
        "problems": verify_curve(model, found).problems,
    }


def _sentences(counts: dict[str, Any]) -> list[str]:
    problems = [f"does not hold: {problem}" for problem in counts["problems"]]
    return [
        f"{counts['right_when_clean']} of {counts['images']} images are right when clean",
        f"{counts['attack']} made {counts['accepted_mistakes']} of them accepted and wrong and "
        f"{counts['rejections']} rejected, within {counts['norm']} {counts['eps']:g}; "
        f"{counts['resisted']} resisted",
        *(problems or ["every recorded point was confirmed"]),
        f"{counts['passes_per_image']:,.0f} passes per image, {_show.duration(counts['seconds'])}",
    ]


def certify(
    address: str = options.address(),
    *,
    eps: float | None = options.eps(),
    calibrate: float | None = options.calibration(),
    validation: str | None = options.validation(),
    crown: bool = option(
        "Use CROWN in addition to interval bounds.", "--crown/--no-crown", default=True
    ),
    per_image: bool = option("Also print the radii of each image.", default=False),
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Prove a lower bound on a model's robustness, in Linf.

    No attack can find an accepted mistake or a rejection within the proven radii. `cpr-wrap curve
    --certify` draws this bound below the curve that attacks give.

    Example: cpr-wrap certify bundled:mnist-compact-ibp --eps 0.3
    """
    device = _load.pick_device(common.device)
    with _load.several_processes(device) as leads:
        from cpr_wrap.evaluation import certify as prove
        from cpr_wrap.metrics import PAPER_ALPHAS

        subject = _load.load_model(address, model, device).on_images(eps, model, data)
        subject = subject.calibrated(calibrate, validation, data)
        images, rule = subject.images, subject.model.rule
        mention(f"{address}, {rule.describe()}, {len(images)} images, eps {subject.eps:g}")
        task = (subject.model, images.images, images.labels, subject.eps)
        found = prove(*task, crown=crown, indices=images.indices, progress=True)
        if not leads:
            return
        rows = [
            {"index": number, **row}
            for number, row in zip(found.index.tolist(), found.to_rows(), strict=True)
        ]
        if common.as_json:
            _show.print_json(found.summary() | ({"per_image": rows} if per_image else {}))
            return
        _show.print_certificate(found, PAPER_ALPHAS)
        for row in rows if per_image else ():
            typer.echo("  ".join(f"{key} {value}" for key, value in row.items()))


def bench(
    address: str = argument("A model.", "bundled:mnist-compact-at", metavar="ADDRESS"),
    *,
    eps: float | None = options.eps(),
    budget: str = options.budget(default="quick"),
    batch_size: int = option("Batch size.", default=128, min=1),
    model: ModelOptions,
    data: DataOptions,
    common: Common,
) -> None:
    """Measure how long passes, a prediction and an evaluation take, and how they compare.

    The bare time of an evaluation is the time of its forward and backward passes alone. Processor
    times are given too, because they do not depend on other work on the machine.

    Example: cpr-wrap bench bundled:mnist-compact-at --num 100
    """
    from cpr_wrap.evaluation import benchmark
    from cpr_wrap.evaluation.curve import find_budget

    plan = find_budget(budget)
    loaded = _load.load_model(address, model, _load.pick_device(common.device))
    subject = loaded.on_images(eps, model, data)
    task = (loaded.model, subject.images, subject.eps)
    figures = benchmark.measure(*task, budget=plan, batch_size=batch_size, norm=subject.norm)
    if common.as_json:
        _show.print_json({"model": address, "rule": loaded.model.rule, "engine": figures})
        return
    typer.echo(f"{address}, {loaded.model.rule.describe()}, batches of {batch_size}")
    lines = {
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
    _show.print_list("engine", lines)
