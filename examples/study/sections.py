"""The sections of the document about the main table, the audit and the cost.

Each says so where its stage has no result.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cpr_wrap.metrics import PAPER_ALPHAS
from cpr_wrap.report.wording import MISSING, count_text, eps_text, seconds_text
from study import paper
from study.figure import figure_name
from study.options import STAGES
from study.paper import SEEN
from study.read import Result, Results
from study.stages import MAIN
from study.tables import (
    curve_points,
    losses,
    markdown,
    ramps,
    share,
    traditional,
    with_and_without,
)
from study.verdict import losses_on, shared

NO_RESULT = "This stage has no result yet."

Asked = dict[str, list[tuple[Result, Any]]]


def main_table(results: Results) -> list[str]:
    """The losses of all methods, the figure, and the curve in numbers."""
    parts = ["## Total robust loss on MNIST"]
    if not results.of("main"):
        return [*parts, NO_RESULT]
    parts.append(
        "Each cell: ours (95 % interval) / the paper's. Both integrate ramps by the paper's rule; "
        "exact ramps are below."
    )
    for budget, eps in paper.EPS.items():
        table, figures = results.table(budget), paper.LOSSES[budget]
        parts.append(f"### {budget.capitalize()} attacks, ε = {eps:g}")
        methods = list(figures)
        parts.append(f"Losses of {paper.TABLES['table1']}:")
        parts.append(losses(table, figures, paper.TABLE_1, methods))
        parts.append(f"Losses of {paper.TABLES['additional']}:")
        parts.append(losses(table, figures, paper.ADDITIONAL, methods))
        if table:
            parts.append(picture(results, "main", budget))
            parts.append("Robustness with rejection in percent (95 % interval):")
            parts.append(curve_points(table))
    parts += ["### Ramps, integrated exactly and as in the paper", _TRAPEZOIDS]
    for budget, eps in paper.EPS.items():
        if table := results.table(budget):
            parts += [f"ε = {eps:g}:", ramps(table, paper.LOSSES[budget])]
    return parts


def picture(results: Results, stage: str, budget: str) -> str:
    """The figure of a stage under one budget."""
    path = f"{results.root.name}/{figure_name(stage, budget)}.svg"
    return f"![Robustness curves, {budget} attacks]({path})"


def rejection(results: Results) -> list[str]:
    """The same networks with and without rejection."""
    parts = ["## With and without rejection"]
    table = with_and_without(results)
    if not table:
        return [*parts, NO_RESULT]
    parts.append(
        "Robustness in percent (95 % interval) of the same network, alone under AutoAttack and "
        "with CPR. What never rejects has the same robustness at every α; CPR pays for large α, "
        "where rejecting is an error."
    )
    return [*parts, table]


_TRAPEZOIDS = (
    "Our losses above are exact for the points found: the mean over images of the loss at the "
    f"smallest rejected radius. The paper integrates a curve known at {len(PAPER_ALPHAS)} values "
    f"of α with straight lines between them. From {PAPER_ALPHAS[-2]:g} to {PAPER_ALPHAS[-1]:g} "
    "there is none, so that all rejections of large perturbations are spread evenly over that "
    "stretch. Each cell: ours exactly / ours by the paper's rule / the paper's."
)


def check(results: Results) -> list[str]:
    """What more effort finds on the same images."""
    lines = []
    budgets = set()
    for result in results.of("check"):
        same = (r for r in results.of("main") if r.method == result.method)
        main = next((r for r in same if r.has_eps(result.curve.eps)), None)
        if main is None or main.plan == result.plan:
            continue
        on = shared([main, result])
        if len(on) < result.images:
            continue
        lost = [int(losses_on(r, "step:0", on).sum()) for r in (main, result)]
        passes = [count_text(r.details["passes_total"]["per_image"]) for r in (main, result)]
        budgets.add(f"`{main.plan}` / with `{result.plan}`")
        counts = [str(len(on)), " / ".join(map(str, lost)), " / ".join(passes)]
        lines.append([_called(result), *counts])
    if not lines:
        return []
    return [
        "### What more effort finds",
        "Errors at α = 0, accepted mistakes and rejected clean images, on the same images with the "
        f"budget {', '.join(sorted(budgets))}, which looks for accepted mistakes only. Where they "
        "differ, differences from the paper in the main table are at least in part the attack's "
        "and not the method's.",
        markdown(["Method", "n", "errors at α = 0", "passes an image"], lines),
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
    plans = {r.plan for r in results.of("main") if r.method in ("AT", "TRADES")}
    versions = sorted(plan.partition("-")[2] or "standard" for plan in plans)
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


def audit(results: Results) -> list[str]:
    """Is the evaluation believable?"""
    parts = ["## Audit of the evaluation"]
    asked: Asked = defaultdict(list)
    for stage in ("main", "cifar10"):
        for result in results.of(stage):
            for check in result.details.get("audit") or []:
                asked[check["name"]].append((result, check))
    if not asked:
        return [*parts, NO_RESULT]
    audited = {id(result) for answers in asked.values() for result, _ in answers}
    example = _example(asked)
    parts.append(
        f"Checks of {len(audited)} results on a few images each. The last column says what was "
        f"measured for {_called(example)}."
    )
    lines = []
    for question, answers in asked.items():
        passed = [check["passed"] for _, check in answers]
        counts = [str(passed.count(value)) for value in (True, False, None)]
        shown = [check["detail"] for result, check in answers if result is example]
        lines.append([question, *counts, shown[0] if shown else MISSING])
    head = ["Check", "passed", "failed", "could not be asked", "for instance"]
    parts.append(markdown(head, lines))
    for title, value in (("Failed", False), ("Could not be asked", None)):
        if listed := _listed(asked, value):
            parts += [f"{title}:", "\n".join(listed)]
    return parts


def _listed(asked: Asked, value: bool | None) -> list[str]:
    """Checks with one outcome; results of which the same is said stand together."""
    names: dict[str, list[str]] = defaultdict(list)
    for question, answers in asked.items():
        for result, check in answers:
            if check["passed"] is value:
                names[f"{question}: {check['detail']}"].append(_called(result))
    return [f"- {text} ({'; '.join(called)})" for text, called in names.items()]


def _example(asked: Asked) -> Result:
    """CPR under the largest ε if it was audited: the hardest to attack."""
    audited = [result for answers in asked.values() for result, _ in answers]
    return max(audited, key=lambda r: (r.rule["name"] == "cpr", r.curve.eps))


def _called(result: Result) -> str:
    return f"{result.method}, ε = {eps_text(result.curve.eps)}"


def cost(results: Results) -> list[str]:
    """What it took."""
    lines = []
    missing = [MISSING] * 4
    for stage in (name for name in STAGES if name != "audit"):
        found = results.of(stage)
        if not found:
            lines.append([stage, "missing", *missing])
            continue
        seconds = sum(row["seconds"] for r in found for row in r.details["passes"])
        passes = sorted(r.details["passes_total"]["per_image"] for r in found)
        images = sorted({r.images for r in found})
        plans = ", ".join(sorted({r.plan for r in found}))
        count = "–".join(map(str, {images[0]: 0, images[-1]: 0}))
        each = " to ".join(dict.fromkeys(map(count_text, (passes[0], passes[-1]))))
        lines.append([stage, str(len(found)), count, plans, each, seconds_text(seconds)])
    head = ["Stage", "results", "images each", "budgets", "passes an image", "time"]
    methods = {r.method for r in results.of("main")}
    absent = [name for name in MAIN if name not in methods]
    parts = ["## What was run", markdown(head, lines)]
    parts.append("A pass is one image through one forward or one backward of the network.")
    found = [r for stage in results.stages.values() for r in stage]
    revisions = sorted({str(r.study["identity"]["engine"]) for r in found if "identity" in r.study})
    if len(revisions) > 1:
        parts.append(f"These results are of different engines, revisions {', '.join(revisions)}.")
    if absent:
        parts.append(f"Methods of the main table without a result: {', '.join(absent)}.")
    return parts
