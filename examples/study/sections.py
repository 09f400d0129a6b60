"""The sections of the document about single stages; each says so where its stage has no result."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from cpr_wrap.metrics import PAPER_ALPHAS
from cpr_wrap.report.wording import MISSING, count_text, seconds_text
from study import paper
from study.paper import SEEN, UNSEEN
from study.read import Result, Results
from study.stages import MAIN, within_rate
from study.tables import (
    ADDITIONAL,
    TABLE_1,
    curve_points,
    detection,
    losses,
    markdown,
    ramps,
    share,
    traditional,
)

NO_RESULT = "This stage has no result yet."


def main_table(results: Results) -> list[str]:
    """The losses of all methods, the figure, and the curve in numbers."""
    parts = ["## Total robust loss on MNIST"]
    if not results.of("main"):
        return [*parts, NO_RESULT]
    parts.append("Each cell: ours (95 % interval) / the paper's.")
    for budget, eps in paper.EPS.items():
        table, figures = results.table(budget), paper.LOSSES[budget]
        parts.append(f"### {budget.capitalize()} attacks, ε = {eps:g}")
        methods = list(figures)
        parts.append(f"Losses of {paper.TABLES['table1']}:")
        parts.append(losses(table, figures, TABLE_1, methods))
        parts.append(f"Losses of {paper.TABLES['additional']}:")
        parts.append(losses(table, figures, ADDITIONAL, methods))
        if table:
            parts.append(f"![Robustness curves, {budget} attacks](study/curves-{budget}.svg)")
            parts.append("Robustness with rejection in percent (95 % interval):")
            parts.append(curve_points(table))
    parts += ["### Ramps, integrated exactly and as in the paper", _TRAPEZOIDS]
    for budget, eps in paper.EPS.items():
        if table := results.table(budget):
            parts += [f"ε = {eps:g}:", ramps(table, paper.LOSSES[budget])]
    return parts


_TRAPEZOIDS = (
    "Our losses above are exact for the points found: the mean over images of the loss at the "
    f"smallest rejected radius. The paper integrates a curve known at {len(PAPER_ALPHAS)} values "
    f"of α with straight lines between them. From {PAPER_ALPHAS[-2]:g} to {PAPER_ALPHAS[-1]:g} "
    "there is none, so that all rejections of large perturbations are spread evenly over that "
    "stretch. Each cell: ours exactly / ours by the paper's rule / the paper's."
)


def check(results: Results) -> list[str]:
    """What a larger budget finds on the same images, where the main table is a quick one."""
    lines = []
    for result in results.of("check"):
        quick = results.table(UNSEEN).get(result.method)
        if quick is None or quick.plan == result.plan:
            continue
        rows = torch.isin(quick.curve.records.index, result.curve.records.index)
        if int(rows.sum()) < result.images:
            continue
        cells = []
        for alpha in (0.0, 1.0):
            kept = 1 - quick.curve.image_losses(f"step:{alpha:g}")[rows]
            own = 100 * result.curve.accuracy_at(alpha)
            cells.append(f"{100 * float(kept.mean()):.1f} / {own:.1f}")
        passes = [count_text(r.details["passes_total"]["per_image"]) for r in (quick, result)]
        lines.append([result.method, str(result.images), *cells, " / ".join(passes)])
    if not lines:
        return []
    return [
        "### How much the quick budget misses",
        f"Robustness in percent at ε = {paper.EPS[UNSEEN]:g} on the same images, with the budget "
        "`quick` / with `standard`. Where they differ, differences from the paper in the quick "
        "figures above are at least in part the attack's and not the method's.",
        markdown(["Method", "n", "α = 0", "α = 1", "passes an image"], lines),
    ]


def clean_table(results: Results) -> list[str]:
    """Traditional metrics, with the networks that never reject."""
    parts = ["## Traditional metrics on MNIST"]
    if not results.of("main"):
        return [*parts, NO_RESULT]
    parts.append(
        "In percent, ours (95 % interval) / the paper's. Robust is robust accuracy with detection. "
        "AT and TRADES never reject and are attacked by AutoAttack alone."
    )
    parts.append(traditional(results, paper.TRADITIONAL))
    versions = sorted({r.plan for r in results.of("main") if r.method in ("AT", "TRADES")})
    if versions:
        parts.append(f"AutoAttack's version here: {', '.join(versions)}.")
    return parts


def calibration(results: Results) -> list[str]:
    """What the rules were set to."""
    parts = ["## Rules, and what they reject of the validation images"]
    lines = []
    for stage in ("main", "cifar10"):
        table = results.table(SEEN, stage)
        for method in dict.fromkeys([*(name for name in MAIN if name in table), *table]):
            result = table[method]
            about = result.details["calibration"] or {}
            seen = about.get("validation")
            rejected = share(seen["rejected_correct"], seen["correct"]) if seen else MISSING
            lines.append(
                [
                    f"{result.method} ({result.details['dataset']})",
                    _rule_text(result.rule),
                    f"calibrated to {100 * about['rate']:g} %" if about.get("rate") else "as is",
                    rejected,
                    _compared(about.get("for_comparison")),
                ]
            )
    if not lines:
        return [*parts, NO_RESULT]
    head = ["Method", "rule", "how", "correct ones rejected, %", "radius that would reach the rate"]
    return [*parts, markdown(head, lines)]


def _rule_text(rule: Any) -> str:
    if rule["name"] == "none":
        return "none"
    if rule["name"] == "cpr":
        return f"radius {rule['radius']:.4g}, {rule['steps']} steps of {rule['step_size']:g}"
    return f"{rule['name']}, threshold {rule['threshold']:.4g}"


def _compared(record: Any) -> str:
    if not record:
        return MISSING
    text = f"{record['rule']['radius']:.4g} for {100 * record['reject_rate']:g} %"
    return text if record["reached"] else f"{text}, not reached"


def ccat(results: Results) -> list[str]:
    """Two attacks on CCAT."""
    parts = ["## Attacking CCAT"]
    found = results.of("ccat")
    if not found:
        return [*parts, NO_RESULT]
    parts.append(
        f"Robust accuracy with detection in percent that each attack alone leaves, ours (95 % "
        f"interval) / {paper.TABLES['ccat']}."
    )
    lines = []
    for name, figures in paper.CCAT.items():
        cells = []
        for budget, eps in paper.EPS.items():
            own = [r for r in found if r.study["attack"] == name and abs(r.curve.eps - eps) < 1e-6]
            text = f"{detection(own[0])}, n = {own[0].images}" if own else MISSING
            cells.append(f"{text} / {figures[budget]:.2f}")
        lines.append([name, *cells, _passes([r for r in found if r.study["attack"] == name])])
    head = ["Attack", "seen", "unseen", "passes an image"]
    return [*parts, markdown(head, lines)]


def _passes(found: list[Result]) -> str:
    texts = [count_text(r.details["passes_total"]["per_image"]) for r in found]
    return ", ".join(texts) or MISSING


def attacks(results: Results) -> list[str]:
    """Every attack alone."""
    parts = ["## Each attack alone"]
    found = results.of("attacks")
    if not found:
        return [*parts, NO_RESULT]
    parts.append(
        f"Robustness with rejection in percent that is left at ε = {paper.EPS[SEEN]:g}: at α = 0 "
        "for outer attacks, at α = 1 for inner ones (given the mistakes of all outer attacks). "
        f"Smaller is stronger. Ours (95 % interval) / {paper.TABLES['attacks']}. All attacks had "
        "the same iterations, starts and step sizes."
    )
    lines = []
    for result in found:
        figures = paper.ATTACKS.get(result.method, {})
        for row in result.details["ablation"] or []:
            kept = share(round(row["robustness"] * result.images), result.images)
            name = str(row["attack"])
            theirs = figures.get(name.removesuffix("-small"), None)
            goal = "outer, α = 0" if row["alpha"] == 0 else "inner, α = 1"
            cell = f"{kept} / {MISSING if theirs is None else f'{theirs:.2f}'}"
            passes = count_text(row["passes_per_image"])
            lines.append([result.method, name, goal, str(result.images), cell, passes])
    head = ["Method", "attack", "kind", "n", "robustness", "passes an image"]
    return [*parts, markdown(head, lines)]


def radius(results: Results) -> list[str]:
    """Radii and numbers of steps, and which would be chosen."""
    parts = ["## Radius and number of steps of CPR"]
    found = results.of("radius")
    if not found:
        return [*parts, NO_RESULT]
    parts.append(
        f"AT+CPR at ε = {paper.EPS[SEEN]:g} with steps of {paper.STEP_SIZE:g}: robustness in "
        "percent at α = 0 / α = 1. A radius that m steps cannot reach is the same rule as the one "
        "they do reach, and stands in the same column. The paper draws these curves and prints no "
        "numbers."
    )
    for part, title in (("robust", "test images"), ("validation", "validation images")):
        grid: dict[int, dict[float, Result]] = defaultdict(dict)
        for result in found:
            if result.study["images"] == part:
                grid[int(result.study["steps"])][float(result.study["radius"])] = result
        if grid:
            count = sorted({r.images for row in grid.values() for r in row.values()})
            parts += [f"On {', '.join(map(str, count))} {title}:", _grid(grid)]
    return [*parts, _choice(found)]


def _grid(grid: dict[int, dict[float, Result]]) -> str:
    lines = []
    for steps in sorted(grid):
        cells = []
        for size in paper.RADII:
            result = grid[steps].get(size)
            if result is None:
                cells.append(MISSING)
                continue
            curve = result.curve
            cells.append(f"{100 * curve.accuracy_at(0.0):.1f} / {100 * curve.accuracy_at(1.0):.1f}")
        lines.append([f"m = {steps}", *cells])
    return markdown(["", *(f"radius {size:g}" for size in paper.RADII)], lines)


def _choice(found: list[Result]) -> str:
    """The choice that the validation images make: robust at alpha 0, within the rejection rate."""
    able = []
    for result in found:
        seen = result.details["calibration"]["validation"]
        if result.study["images"] == "validation" and within_rate(
            seen["rejected_correct"], seen["correct"]
        ):
            able.append(result)
    if not able:
        return (
            "No choice from validation images: none of these rules was attacked on them, or all "
            f"reject more than {100 * paper.REJECT_RATE:g} % of the correctly classified ones."
        )
    # Among equals the cheaper, then the one that looks further.
    best = max(
        able,
        key=lambda r: (r.curve.accuracy_at(0.0), -int(r.study["steps"]), float(r.study["radius"])),
    )
    seen = best.details["calibration"]["validation"]
    return (
        f"Chosen on validation images, as the most robust at α = 0 among those that reject at most "
        f"{100 * paper.REJECT_RATE:g} % of the correctly classified ones (of equals the one with "
        f"fewer steps): radius {best.study['radius']:g}, m = {best.study['steps']}, which rejects "
        f"{share(seen['rejected_correct'], seen['correct'])} % of them and keeps "
        f"{100 * best.curve.accuracy_at(0.0):.1f} % at α = 0. The paper's: radius "
        f"{paper.RADIUS:g}, m = {paper.STEPS}."
    )


def cifar10(results: Results) -> list[str]:
    """The same on CIFAR-10 as far as it goes."""
    parts = ["## CIFAR-10"]
    if not results.of("cifar10"):
        return [*parts, NO_RESULT]
    parts.append("Total robust losses, ours (95 % interval) / the paper's:")
    for budget in (SEEN, UNSEEN):
        table = results.table(budget, "cifar10")
        figures = paper.CIFAR10_LOSSES[budget]
        methods = [name for name in dict.fromkeys([*figures, *table]) if name in table]
        title = f"{budget.capitalize()} attacks, ε = {round(255 * paper.CIFAR10_EPS[budget])}/255:"
        parts += [title, losses(table, figures, TABLE_1, methods)]
    parts.append("Traditional metrics in percent:")
    parts.append(traditional(results, paper.CIFAR10_TRADITIONAL, "cifar10"))
    return parts


def audit(results: Results) -> list[str]:
    """Is the evaluation believable?"""
    parts = ["## Audit of the evaluation"]
    asked: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for stage in ("main", "cifar10"):
        for result in results.of(stage):
            for check in result.details.get("audit") or []:
                name = f"{result.method}, ε = {result.curve.eps:.4g}"
                asked[check["name"]].append((name, check))
    if not asked:
        return [*parts, NO_RESULT]
    lines = []
    for question, answers in asked.items():
        passed = [check["passed"] for _, check in answers]
        counts = [str(passed.count(True)), str(passed.count(False)), str(passed.count(None))]
        lines.append([question, *counts])
    parts.append(markdown(["Check", "passed", "failed", "could not be asked"], lines))
    failed = [
        f"- {name}: {question}: {check['detail']}"
        for question, answers in asked.items()
        for name, check in answers
        if check["passed"] is False
    ]
    if failed:
        parts += ["Failed:", "\n".join(failed)]
    return parts


def cost(results: Results) -> list[str]:
    """What it took."""
    lines = []
    for stage, found in results.stages.items():
        seconds = sum(row["seconds"] for r in found for row in r.details["passes"])
        passes = sum(r.details["passes_total"]["per_image"] * r.images for r in found)
        images = sorted({r.images for r in found})
        plans = ", ".join(sorted({r.plan for r in found}))
        count = "–".join(map(str, {images[0]: 0, images[-1]: 0}))
        lines.append(
            [stage, str(len(found)), count, plans, count_text(passes), seconds_text(seconds)]
        )
    head = ["Stage", "results", "images each", "budgets", "passes", "time"]
    methods = {r.method for r in results.of("main")}
    missing = [name for name in MAIN if name not in methods]
    lines += [
        [stage, "missing", MISSING, MISSING, MISSING, MISSING]
        for stage in ("main", "ccat", "attacks", "radius", "cifar10")
        if not results.of(stage)
    ]
    parts = ["## What was run", markdown(head, lines)]
    if missing:
        parts.append(f"Methods of the main table without a result: {', '.join(missing)}.")
    return parts
