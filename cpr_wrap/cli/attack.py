"""`cpr-wrap attack`, `certify` and `bench`: one attack, a proof, or the time that passes take."""

from __future__ import annotations

from typing import Any

import typer

from cpr_wrap.attacks.ensemble import Listed
from cpr_wrap.cli import _load, _show
from cpr_wrap.cli._attacks import find_attack
from cpr_wrap.cli._run import CHECK_FAILED, answer, mention
from cpr_wrap.cli.commands import Attack, Bench, Certify
from cpr_wrap.evaluation import benchmark, verify_curve
from cpr_wrap.evaluation import certify as prove
from cpr_wrap.evaluation.curve import find_budget
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.selective import SelectiveClassifier, rule_config


def attack(options: Attack) -> None:
    """Run one attack, and count what holds."""
    loaded = _load.load_model(options, _load.pick_device(options.device))
    model, counted = loaded.model, {"steps": options.iterations, "restarts": options.restarts}
    stage = find_attack(options.name, model.rule, **counted)
    task = _load.load_task(options, loaded, Listed(name=f"only {stage.name}", listed=(stage,)))
    _load.warn_of_open_rule(model)
    found = task.evaluate(audited=False, seed=options.seed, batch_size=options.batch_size)
    counts = _count(model, found, stage.name)
    content = {"model": options.address, "rule": rule_config(model.rule), **counts}
    answer(options, content, *_sentences(counts))
    if counts["problems"]:
        raise typer.Exit(CHECK_FAILED)


def _count(model: SelectiveClassifier, found: RobustnessCurve, name: str) -> dict[str, Any]:
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


def certify(options: Certify) -> None:
    """Prove, and show what is proven."""
    device = _load.pick_device(options.device)
    with _load.several_processes(device) as leads:
        loaded = _load.load_model(options, device)
        task = _load.load_task(options, loaded)
        task = _load.calibrated_task(task, options.calibrate, options, loaded.facts)
        model, images, eps = task.model, task.data, task.eps
        mention(f"{options.address}, {model.rule.describe()}, {len(images)} images, eps {eps:g}")
        found = prove(
            model,
            images.images,
            images.labels,
            eps,
            crown=options.crown,
            indices=images.indices,
            progress=True,
        )
        if not leads:
            return
        rows = [
            {"index": number, **row}
            for number, row in zip(found.index.tolist(), found.to_rows(), strict=True)
        ]
        content, lines = found.summary(), _show.certificate_lines(found)
        if options.per_image:
            content["per_image"] = rows
            lines += ["  ".join(f"{key} {value}" for key, value in row.items()) for row in rows]
        answer(options, content, *lines)


def bench(options: Bench) -> None:
    """Measure, and print the figures."""
    budget, batch_size = find_budget(options.budget), options.batch_size
    loaded = _load.load_model(options, _load.pick_device(options.device))
    task, rule = _load.load_task(options, loaded), loaded.model.rule
    figures = benchmark.measure(
        loaded.model, task.data, task.eps, budget=budget, batch_size=batch_size, norm=task.norm
    )
    lines = {
        "forward": f"{1e6 * figures.forward:,.0f} µs per image",
        "input gradient": f"{1e6 * figures.backward:,.0f} µs per image, without its forward "
        f"({1e6 * figures.smoothed:,.0f} µs smoothed)",
        "prediction": f"{1e6 * figures.prediction:,.0f} µs per image, "
        f"{figures.prediction_ratio:.2f} times its bare passes "
        f"({figures.cpu_prediction_ratio:.2f} in processor time)",
        f"budget {options.budget}": f"{figures.passes_per_image:,.0f} passes per image, "
        f"{_show.duration(figures.seconds)} for {figures.images} images",
        "efficiency": f"{figures.efficiency:.2f}, bare time / time taken "
        f"({figures.cpu_efficiency:.2f} in processor time)",
    }
    head = f"{options.address}, {rule.describe()}, batches of {batch_size}"
    content = {"model": options.address, "rule": rule_config(rule), "engine": figures}
    answer(options, content, head, *_show.listed("engine", lines))
