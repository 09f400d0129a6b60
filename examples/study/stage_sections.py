"""The sections of the document about the smaller stages.

Each says so where its stage has no result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from cpr_wrap.report.wording import MISSING, count_text
from study import paper, stages
from study.options import Options
from study.paper import SEEN, UNSEEN
from study.plans import Backtracking, EqualTerms, HighConfidence
from study.read import Result, Results
from study.sections import NO_RESULT, picture
from study.single_claims import rejected_within
from study.tables import (
    curve_points,
    detection,
    losses,
    markdown,
    share,
    traditional,
)
from study.verdict import losses_on, shared

Grid = dict[int, dict[float, Result]]


def ccat(results: Results) -> list[str]:
    """Two attacks on CCAT."""
    parts = ["## Attacking CCAT"]
    found = results.of("ccat")
    if not found:
        return [*parts, NO_RESULT]
    parts.append(
        f"Robust accuracy with detection in percent that each attack alone leaves, ours (95 % "
        f"interval) / {paper.TABLES['ccat']}. {_terms(found)}"
    )
    lines = []
    for name, figures in paper.CCAT.items():
        cells = []
        for budget, eps in paper.EPS.items():
            own = [r for r in found if r.study["attack"] == name and r.has_eps(eps)]
            text = f"{detection(own[0])}, n = {own[0].images}" if own else MISSING
            cells.append(f"{text} / {figures[budget]:.2f}")
        lines.append([name, *cells, _passes([r for r in found if r.study["attack"] == name])])
    if beside := _beside(results, found):
        lines.append(beside)
    head = ["Attack", "seen", "unseen", "passes an image, seen and unseen"]
    return [*parts, markdown(head, lines)]


def _beside(results: Results, found: list[Result]) -> list[str]:
    """What the main table's budget leaves on the same images."""
    tables = [results.table(budget).get("CCAT") for budget in paper.EPS]
    main = [result for result in tables if result is not None]
    cells = []
    for result in main:
        on = shared([result, *(r for r in found if r.has_eps(result.curve.eps))])
        lost = int(losses_on(result, "step:0", on).sum())
        cells.append(f"{share(len(on) - lost, len(on))}, n = {len(on)} / {MISSING}")
    if len(cells) < len(tables):
        return []
    return [f"all of `{main[0].plan}`, as in the main table", *cells, _passes(main)]


def _terms(found: list[Result]) -> str:
    """What each of the two attacks was allowed."""
    if any(r.study.get("budget") != "standard" for r in found):
        return "Both attacks were cut short for a first look."
    ours, theirs = HighConfidence(), Backtracking()
    return (
        f"HCMOA had the paper's {ours.iterations} iterations and {len(ours.sizes)} step sizes for "
        f"each target class, but only {len(ours.starts)} starts; PGD with backtracking had the "
        f"paper's {theirs.iterations:,} iterations and {theirs.restarts} random starts."
    )


def rejections(results: Results) -> list[str]:
    """How near a rejection can be forced, whether or not there is an accepted mistake too."""
    parts = ["## Rejections that can be forced"]
    found = results.of("rejections")
    if not found:
        return [*parts, NO_RESULT]
    near = paper.CCAT_REJECTED_WITHIN
    parts.append(
        "In the main table nobody looks for rejections of an image any more once an accepted "
        "mistake was found. Here they were looked for on every image that is not an accepted "
        "mistake as it is; shares in percent (95 % interval)."
    )
    lines = []
    for result in sorted(found, key=lambda r: (r.method, r.curve.eps)):
        counts = [rejected_within(result, radius) for radius in (0.0, near, result.curve.eps)]
        shares = [share(count, total, digits=1) for count, total in counts]
        lines.append([f"{result.method}, ε = {result.curve.eps:g}", str(counts[0][1]), *shares])
    head = ["Method", "n", "clean", f"within {near:g}", "within ε"]
    return [*parts, markdown(head, lines)]


def _passes(found: list[Result]) -> str:
    found = sorted(found, key=lambda r: r.curve.eps)
    texts = [count_text(r.details["passes_total"]["per_image"]) for r in found]
    return " and ".join(texts) or MISSING


def attacks(results: Results) -> list[str]:
    """Every attack alone."""
    parts = ["## Each attack alone"]
    found = results.of("attacks")
    if not found:
        return [*parts, NO_RESULT]
    parts.append(
        "Robustness with rejection in percent that is left at the training's ε: at α = 0 for outer "
        "attacks, at α = 1 for inner ones (given the mistakes of all outer attacks). "
        f"Smaller is stronger. Ours (95 % interval) / {paper.TABLES['attacks']}. All but "
        "AutoAttack had the same iterations, starts and step sizes; PDIA aimed at the "
        f"{EqualTerms().targets} likeliest classes, in the paper at all."
    )
    lines = []
    for result in found:
        printed = paper.ATTACKS if result.on_mnist else paper.CIFAR10_ATTACKS
        figures = printed.get(result.method, {})
        for row in result.details["ablation"] or []:
            kept = share(round(row["robustness"] * result.images), result.images)
            name = str(row["attack"])
            theirs = figures.get(name.removesuffix("-small"), None)
            goal = "outer, α = 0" if row["alpha"] == 0 else "inner, α = 1"
            cell = f"{kept} / {MISSING if theirs is None else f'{theirs:.2f}'}"
            passes = count_text(row["passes_per_image"])
            lines.append([result.where, name, goal, str(result.images), cell, passes])
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
        grid = _grid(found, part)
        if grid:
            count = sorted({r.images for row in grid.values() for r in row.values()})
            parts += [f"On {', '.join(map(str, count))} {title}:", _grid_table(grid, _ends)]
    if grid := _grid(found, "robust"):
        parts.append("Correctly classified validation images that each rule rejects, in percent:")
        parts.append(_grid_table(grid, _rejected))
    return [*parts, _choice(found)]


def _grid(found: list[Result], part: str) -> Grid:
    """Results on one part of the images by steps and radius."""
    grid: Grid = defaultdict(dict)
    for result in found:
        if result.study["images"] == part:
            grid[int(result.study["steps"])][float(result.study["radius"])] = result
    return grid


def _ends(result: Result) -> str:
    curve = result.curve
    return f"{100 * curve.accuracy_at(0.0):.1f} / {100 * curve.accuracy_at(1.0):.1f}"


def _rejected(result: Result) -> str:
    seen = (result.details["calibration"] or {}).get("validation")
    return share(seen["rejected_correct"], seen["correct"]) if seen else MISSING


def _grid_table(grid: Grid, cell: Callable[[Result], str]) -> str:
    lines = []
    for steps in sorted(grid):
        row = grid[steps]
        lines.append(
            [f"m = {steps}", *(cell(row[r]) if r in row else MISSING for r in paper.RADII)]
        )
    return markdown(["", *(f"radius {size:g}" for size in paper.RADII)], lines)


def _choice(found: list[Result]) -> str:
    """The choice that the validation images make: robust at alpha 0, within the rejection rate."""
    able = []
    for result in found:
        seen = result.details["calibration"]["validation"]
        if result.study["images"] == "validation" and stages.within_rate(
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
        f"{100 * best.curve.accuracy_at(0.0):.1f} % at α = 0 (n = {best.images}). Rules that "
        f"reject more were not attacked on validation images. The paper's choice: radius "
        f"{paper.RADIUS:g}, m = {paper.STEPS}."
    )


def _cifar10_methods() -> list[str]:
    return list(dict.fromkeys(task.method for task in stages.cifar10(Options())))


def cifar10(results: Results) -> list[str]:
    """The same on CIFAR-10 as far as it goes."""
    parts = ["## CIFAR-10"]
    if not results.of("cifar10"):
        return [*parts, NO_RESULT]
    parts.append(
        f"AT, AT+CR and AT+CPR stand on `{stages.CIFAR10_AT}`. AT+CPR has the paper's radius "
        f"{paper.CIFAR10_RADIUS:g} and {paper.CIFAR10_STEPS} steps of {paper.CIFAR10_STEP_SIZE:g}; "
        f"AT+CPR calibrated has the radius that rejects {100 * paper.CIFAR10_REJECT_RATE:g} % of "
        "the correctly classified validation images, in steps twice as long, so that it can go "
        "beyond the paper's. The natural network, on few images, was trained without attacks. All "
        "radii and thresholds are in the table of rules above. Total robust losses, ours (95 % "
        "interval) / the paper's:"
    )
    for budget in (SEEN, UNSEEN):
        table = results.table(budget, "cifar10")
        if not table:
            continue
        figures = paper.CIFAR10_LOSSES[budget]
        methods = [name for name in _cifar10_methods() if name in table]
        methods += [name for name in table if name not in methods]
        title = f"{budget.capitalize()} attacks, ε = {round(255 * paper.CIFAR10_EPS[budget])}/255"
        parts.append(f"### {title}")
        parts += [
            losses(table, figures, names, methods) for names in (paper.TABLE_1, paper.ADDITIONAL)
        ]
        parts.append(picture(results, "cifar10", budget))
        parts.append("Robustness with rejection in percent (95 % interval):")
        parts.append(curve_points({name: table[name] for name in methods}))
    parts.append("Traditional metrics in percent, ours (95 % interval) / the paper's:")
    parts.append(traditional(results, paper.CIFAR10_TRADITIONAL, "cifar10"))
    return parts
