"""Tables of the document: our figures with their intervals, the paper's beside them."""

from __future__ import annotations

from itertools import combinations

from cpr_wrap.metrics import (
    Interval,
    RobustnessCurve,
    bootstrap_interval,
    clopper_pearson,
    parse_loss,
)
from cpr_wrap.metrics.clean import robust_accuracy_with_detection
from cpr_wrap.report import Cell, Column, Table
from cpr_wrap.report.wording import MISSING, loss_text
from study import paper
from study.losses import image_losses, total_loss
from study.read import Result, Results
from study.stages import MAIN
from study.verdict import Line, losses_on, shared

RAMPS = ("ramp:1", "ramp:2", "ramp:3", "ramp:4")


def markdown(head: Line, lines: list[Line]) -> str:
    """A Markdown table whose first column is words."""
    columns = tuple(Column(title, words=place == 0) for place, title in enumerate(head))
    rows = tuple(tuple(Cell(text) for text in line) for line in lines)
    return Table(columns=columns, rows=rows).render("markdown")


def intervals(curve: RobustnessCurve, names: tuple[str, ...]) -> list[Interval]:
    """Intervals of total robust losses: exact where a loss is a share of images.

    A bootstrap of a few errors among many images is too narrow.
    """
    found = []
    for name in names:
        each = image_losses(curve, name)
        # By the paper's sum a lost image costs 1 but for the error of a trapezoid.
        exact = curve.image_losses(name)
        share = bool((((exact == 0) & (each == 0)) | (exact == 1)).all())
        found.append(
            clopper_pearson(int(exact.sum()), len(each)) if share else bootstrap_interval(each)
        )
    return found


def loss_cells(curve: RobustnessCurve, names: tuple[str, ...], theirs: paper.Row) -> Line:
    """Our losses with their intervals, the paper's behind."""
    cells = []
    for name, interval in zip(names, intervals(curve, names), strict=True):
        ours = f"{total_loss(curve, name):.3f} ({interval.low:.3f}–{interval.high:.3f})"
        cells.append(f"{ours} / {f'{theirs[name]:.3f}' if name in theirs else MISSING}")
    return cells


def losses(
    table: dict[str, Result], figures: paper.Figures, names: tuple[str, ...], methods: Line
) -> str:
    """Total robust losses of all methods under one budget."""
    head = ["Method", "n, budget", *(loss_text(parse_loss(name)) for name in names)]
    lines = []
    for method in methods:
        theirs = figures.get(method, {})
        result = table.get(method)
        if result is None:
            cells = [f"{MISSING} / {theirs[name]:.3f}" for name in names if name in theirs]
            if cells:
                lines.append([method, "no result", *cells])
            continue
        cells = loss_cells(result.curve, names, theirs)
        lines.append([method, f"{result.images}, {result.plan}", *cells])
    return markdown(head, lines)


def ramps(table: dict[str, Result], figures: paper.Figures) -> str:
    """The exact ramp losses, the same by the paper's integration, and the paper's."""
    head = ["Method", *(loss_text(parse_loss(name)) for name in RAMPS)]
    lines = []
    for method, theirs in figures.items():
        if method not in table:
            continue
        curve = table[method].curve
        cells = [
            f"{curve.total_robust_loss(name):.3f} / "
            f"{total_loss(curve, name):.3f} / {theirs[name]:.3f}"
            for name in RAMPS
        ]
        lines.append([method, *cells])
    return markdown(head, lines)


def share(count: int, total: int, *, digits: int = 2) -> str:
    """A share in percent with its exact interval."""
    if total == 0:
        return MISSING
    interval = clopper_pearson(count, total)
    ours, low, high = (
        f"{100 * part:.{digits}f}" for part in (count / total, interval.low, interval.high)
    )
    return f"{ours} ({low}–{high})"


def detection(result: Result) -> str:
    """Robust accuracy with detection, with its interval."""
    count = round(robust_accuracy_with_detection(result.curve.records) * result.images)
    return share(count, result.images)


def kept(result: Result, alpha: float) -> str:
    """Robustness with rejection at one alpha in percent, with its exact interval."""
    count = round(result.curve.accuracy_at(alpha) * result.images)
    return share(count, result.images, digits=1)


def traditional(results: Results, figures: paper.Figures, stage: str = "main") -> str:
    """Clean figures and robust accuracy with detection, in percent."""
    seen, unseen = (results.table(budget, stage) for budget in (paper.SEEN, paper.UNSEEN))
    head = ["Method", "clean n", "acc. with rej.", "rej. rate", "F1-like"]
    head += ["attacked n", "robust seen", "robust unseen"]
    lines = []
    for method in dict.fromkeys([*figures, *seen, *unseen]):
        theirs = figures.get(method, {})
        known = [result for result in (seen.get(method), unseen.get(method)) if result]
        if not known:
            continue
        clean = next((r.details["clean_images"] for r in known if r.details["clean_images"]), None)
        lines.append(
            [
                method,
                *_clean_cells(clean, theirs),
                ", ".join(sorted({str(result.images) for result in known})),
                *(
                    f"{detection(table[method]) if method in table else MISSING} / "
                    f"{_theirs(theirs, budget)}"
                    for budget, table in ((paper.SEEN, seen), (paper.UNSEEN, unseen))
                ),
            ]
        )
    return markdown(head, lines)


def _theirs(figures: paper.Row, name: str) -> str:
    return f"{figures[name]:.2f}" if name in figures else MISSING


def _clean_cells(clean: dict[str, int] | None, theirs: paper.Row) -> Line:
    names = ("accuracy_with_rejection", "rejection_rate", "f1_like")
    if clean is None:
        return [MISSING, *(f"{MISSING} / {_theirs(theirs, name)}" for name in names)]
    images, accepted, correct = clean["images"], clean["accepted"], clean["correct"]
    ours = [
        share(correct, accepted),
        share(images - accepted, images),
        f"{100 * clean['f1_like']:.2f}",
    ]
    cells = [f"{own} / {_theirs(theirs, name)}" for own, name in zip(ours, names, strict=True)]
    return [str(images), *cells]


def curve_points(table: dict[str, Result]) -> str:
    """Robustness with rejection along alpha, in percent, with intervals."""
    alphas = (0.0, 0.05, 0.1, 0.3, 0.5, 1.0)
    lines = []
    for method in dict.fromkeys([*(name for name in MAIN if name in table), *table]):
        lines.append([method, *(kept(table[method], alpha) for alpha in alphas)])
    return markdown(["Method", *(f"α = {alpha:g}" for alpha in alphas)], lines)


def agreement(results: Results) -> str:
    """How often the paper's loss lies in our interval, and the largest difference."""
    lines = []
    for budget in (paper.SEEN, paper.UNSEEN):
        table = results.table(budget)
        for method, figures in paper.LOSSES[budget].items():
            if method not in table:
                continue
            curve = table[method].curve
            inside, far, where = 0, 0.0, ""
            found = intervals(curve, tuple(figures))
            for (name, theirs), interval in zip(figures.items(), found, strict=True):
                # The paper prints three digits.
                inside += interval.low - 5e-4 <= theirs <= interval.high + 5e-4
                gap = total_loss(curve, name) - theirs
                if abs(gap) >= abs(far):
                    far, where = gap, loss_text(parse_loss(name))
            far_text = f"{far:+.3f} at {where}"
            lines.append([method, budget, f"{inside} of {len(figures)}", far_text])
    return markdown(["Method", "attacks", "within our interval", "largest difference"], lines)


def same_order(results: Results, budget: str) -> tuple[int, int]:
    """How often two methods come in the paper's order, of all pairs and losses that it orders.

    Returns:
        Pairs in its order, and all pairs; those that differ here by nothing are in no order.
    """
    table, figures = results.table(budget), paper.LOSSES[budget]
    agreed = total = 0
    for first, second in combinations([name for name in figures if name in table], 2):
        for name in figures[first]:
            theirs = figures[first][name] - figures[second][name]
            if theirs:
                pair = table[first], table[second]
                ours, other = (losses_on(r, name, shared(pair)).mean() for r in pair)
                agreed += bool((ours - other) * theirs > 0)
                total += 1
    return agreed, total


def with_and_without(results: Results) -> str:
    """The same network with CPR and without rejection, along alpha, in percent."""
    alphas = (0.0, 0.5, 1.0)
    lines = []
    for budget, eps in paper.EPS.items():
        table = results.table(budget)
        for base in ("AT", "TRADES"):
            plain, cpr = table.get(base), table.get(f"{base}+CPR")
            if plain is None or cpr is None:
                continue
            level = plain.curve.accuracy_at(0.0)
            below = [step for step in range(101) if cpr.curve.accuracy_at(step / 100) < level]
            ahead = f"up to {below[0] / 100 - 0.01:.2f}" if below else "everywhere"
            lines.append(
                [
                    f"{base}, ε = {eps:g}",
                    kept(plain, 0.0),
                    *(kept(cpr, alpha) for alpha in alphas),
                    "nowhere" if below and below[0] == 0 else ahead,
                ]
            )
    head = ["Network", "no rejection", *(f"CPR, α = {alpha:g}" for alpha in alphas)]
    return markdown([*head, "α where CPR is not behind"], lines) if lines else ""
