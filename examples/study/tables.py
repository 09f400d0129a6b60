"""Tables of the document: our figures with their intervals, the paper's beside them."""

from __future__ import annotations

import torch

from cpr_wrap.metrics import RobustnessCurve, clopper_pearson, parse_loss
from cpr_wrap.metrics.clean import robust_accuracy_with_detection
from cpr_wrap.report import Cell, Column, Table
from cpr_wrap.report.confidence import error_band, loss_intervals
from cpr_wrap.report.wording import MISSING, loss_text
from study import paper
from study.read import Result, Results
from study.stages import MAIN

TABLE_1 = ("step:0", "step:0.05", "step:0.1", "ramp:2", "ramp:4")
ADDITIONAL = ("step:0.01", "step:0.15", "step:0.2", "ramp:1", "ramp:3")
RAMPS = ("ramp:1", "ramp:2", "ramp:3", "ramp:4")

Line = list[str]


def markdown(head: Line, lines: list[Line]) -> str:
    """A Markdown table whose first column is words."""
    columns = tuple(Column(title, words=place == 0) for place, title in enumerate(head))
    rows = tuple(tuple(Cell(text) for text in line) for line in lines)
    return Table(columns=columns, rows=rows).render("markdown")


def loss_cells(curve: RobustnessCurve, names: tuple[str, ...], theirs: paper.Row) -> Line:
    """Our losses with their intervals, the paper's behind."""
    cells = []
    for name, interval in zip(names, loss_intervals(curve, names), strict=True):
        ours = f"{curve.total_robust_loss(name):.3f} ({interval.low:.3f}–{interval.high:.3f})"
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
            f"{curve.total_robust_loss(name, rule='trapezoid'):.3f} / {theirs[name]:.3f}"
            for name in RAMPS
        ]
        lines.append([method, *cells])
    return markdown(head, lines)


def share(count: int, total: int) -> str:
    """A share in percent with its exact interval."""
    if total == 0:
        return MISSING
    interval = clopper_pearson(count, total)
    low, high = 100 * interval.low, 100 * interval.high
    return f"{100 * count / total:.2f} ({low:.2f}–{high:.2f})"


def detection(result: Result) -> str:
    """Robust accuracy with detection, with its interval."""
    kept = round(robust_accuracy_with_detection(result.curve.records) * result.images)
    return share(kept, result.images)


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
    for method in MAIN:
        if method not in table:
            continue
        curve = table[method].curve
        band = error_band(curve, torch.tensor(alphas, dtype=torch.float64))
        cells = [
            f"{100 * curve.accuracy_at(alpha):.1f} ({100 * (1 - high):.1f}–{100 * (1 - low):.1f})"
            for alpha, low, high in zip(alphas, band.low.tolist(), band.high.tolist(), strict=True)
        ]
        lines.append([method, *cells])
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
            intervals = loss_intervals(curve, tuple(figures))
            for (name, theirs), interval in zip(figures.items(), intervals, strict=True):
                # The paper prints three digits.
                inside += interval.low - 5e-4 <= theirs <= interval.high + 5e-4
                gap = curve.total_robust_loss(name) - theirs
                if abs(gap) >= abs(far):
                    far, where = gap, loss_text(parse_loss(name))
            far_text = f"{far:+.3f} at {where}"
            lines.append([method, budget, f"{inside} of {len(figures)}", far_text])
    return markdown(["Method", "attacks", "within our interval", "largest difference"], lines)
