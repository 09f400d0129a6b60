"""What is tabulated about one run, and about several; only comparable runs are ranked together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cpr_wrap._text import MISSING, count_text, duration, eps_text, percent, percent_range
from cpr_wrap.metrics import (
    CLEAN,
    PAPER_LOSSES,
    Interval,
    RampLoss,
    RejectionLoss,
    RobustnessCurve,
    StepLoss,
    clean_metrics,
    comparison,
)
from cpr_wrap.report.run import Run, RunLike, as_runs, labels
from cpr_wrap.report.table import Cell, Column, Row, Table

INTERVALS = (
    "95% intervals over images, not over attacks: exact (Clopper-Pearson) for shares, bootstrap "
    "for other means."
)
UPPER_BOUND = (
    "Attacks may have missed something: robustness is an upper bound on the true one, a loss a "
    "lower bound."
)

RANKED: tuple[RejectionLoss, ...] = (StepLoss(0.05), RampLoss(2))
"""The losses that are compared where nobody asks for others."""

_CAPTION = (
    "Best: the smallest loss of its table, beyond chance on the shared images (paired test, 95 %), "
    "of a run whose audit did not fail. In parentheses: 95 % intervals over images."
)


def loss_text(loss: RejectionLoss) -> str:
    """A rejection loss in the paper's symbols, or its own name.

    Example:
        >>> loss_text(StepLoss(0.05)), loss_text(RampLoss(2))
        ('step α₀ = 0.05', 'ramp t = 2')
    """
    if isinstance(loss, StepLoss):
        return f"step α₀ = {loss.alpha0:g}"
    if isinstance(loss, RampLoss):
        return f"ramp t = {loss.t:g}"
    return loss.name


def share_cell(share: float | None, digits: int = 1) -> Cell:
    """A share in percent, with its value for machines."""
    text = percent(share, digits)
    return Cell(text, None if text == MISSING else share)


def count_cell(number: float | None) -> Cell:
    """A count, with its value for machines."""
    return Cell(count_text(number), None if number is None else float(number))


def loss_cell(total: float, interval: Interval | None = None, best: bool = False) -> Cell:
    """A total robust loss, with its interval where one is given."""
    ends = "" if interval is None else f" ({interval.low:.3f}–{interval.high:.3f})"
    return Cell(f"{total:.3f}{ends}", total, best)


def curve_values(curve: RobustnessCurve) -> Table:
    """Robustness at the curve's alphas, with intervals."""
    heads = ["α", "radius", "robustness", "95% interval"]
    heads += ["certified"] if curve.certificate is not None else []
    rows = [
        (
            Cell(f"{row['alpha']:g}", row["alpha"]),
            Cell(f"{row['radius']:.4g}", row["radius"]),
            share_cell(row["accuracy"]),
            Cell(percent_range(1 - row["error_high"], 1 - row["error_low"])),
            *(share_cell(row[name]) for name in ("certified_accuracy",) if name in row),
        )
        for row in curve.table()
    ]
    return _of_one("Robustness with rejection", curve, heads, 0, rows)


def losses(
    curve: RobustnessCurve,
    wanted: Sequence[RejectionLoss] = PAPER_LOSSES,
    *,
    theory: bool = False,
) -> Table:
    """Total robust losses of one curve, with intervals.

    Args:
        curve: The curve.
        wanted: The rejection losses.
        theory: Whether to add the bounds of the theorems, if they apply.
    """
    known = (curve.theorems() or ()) if theory else ()
    bounds: dict[str, Any] = {
        f"Thm. {number}": theorem
        for number, theorem in enumerate(known, start=1)
        if theorem.applicable
    }
    if curve.certificate is not None:
        bounds["certified, at most"] = curve.certificate
    heads = ("rejection loss", "total robust loss", "95% interval", *bounds)
    rows = []
    for loss in wanted:
        interval = curve.total_robust_loss_interval(loss)
        rows.append(
            (
                Cell(loss_text(loss)),
                loss_cell(curve.total_robust_loss(loss)),
                Cell(f"{interval.low:.3f}–{interval.high:.3f}"),
                *(loss_cell(bound.total_robust_loss(loss)) for bound in bounds.values()),
            )
        )
    return _of_one("Total robust loss", curve, heads, 1, rows)


def clean_figures(curve: RobustnessCurve) -> Table:
    """Figures of the clean images: those attacked and, where known, the whole test set."""
    groups = {"attacked": {"images": len(curve.records), **clean_metrics(curve.records).to_dict()}}
    if curve.about.clean_test:
        groups["test set"] = {**curve.about.clean_test}
    titles = {
        "accuracy_with_rejection": "accuracy with rejection",
        "rejection_rate": "rejection rate",
        "f1_like": "F1-like",
        "robust_accuracy_with_detection": "robust accuracy with detection",
    }
    images = (Cell("images"), *(count_cell(known["images"]) for known in groups.values()))
    rows = [
        (Cell(title), *(share_cell(known.get(key), 2) for known in groups.values()))
        for key, title in titles.items()
    ]
    return Table(columns=_headed(("", *groups), 1), rows=(images, *rows), title="Clean figures")


def attack_costs(curve: RobustnessCurve) -> Table:
    """Which attack found what, and what it cost where that was counted."""
    broken, rejected = curve.records.first_broken_by(), curve.records.first_rejected_by()
    # An attack may have several stages; their costs add up under its name.
    passes, seconds = Counter[str](), dict[str, float]()
    for stage in curve.passes:
        passes[stage.attack] += stage.passes
        seconds[stage.attack] = seconds.get(stage.attack, 0.0) + stage.seconds
    first = [CLEAN] if CLEAN in {**broken, **rejected} else []
    heads = ["attack", "mistakes", "nearest rejections", *(["passes", "time"] if passes else [])]
    rows = []
    for name in dict.fromkeys([*first, *passes, *broken, *rejected]):
        spent = seconds.get(name)
        time = Cell(MISSING if spent is None else duration(spent), spent)
        costs = (count_cell(passes.get(name)), time) if passes else ()
        found = (count_cell(broken.get(name)), count_cell(rejected.get(name)))
        rows.append((Cell(name), *found, *costs))
    return Table(columns=_headed(heads, 1), rows=tuple(rows), title="Attacks")


def ablation_rows(curve: RobustnessCurve) -> Table:
    """What each attack achieves alone."""
    heads = ("attack", "goal", "α", "robustness", "found", "passes/image")
    rows = tuple(
        (
            Cell(row.attack),
            Cell(row.goal),
            Cell(f"{row.alpha:g}", row.alpha),
            share_cell(row.robustness),
            count_cell(row.found),
            count_cell(row.passes_per_image),
        )
        for row in curve.ablation or ()
    )
    return Table(columns=_headed(heads, 2), rows=rows, title="Ablation")


def with_bars(table: Table, column: int = 2, width: int = 20) -> Table:
    """Append a column that draws the shares of another column as bars."""
    rows = ((*row, Cell("█" * round(width * (row[column].value or 0.0)))) for row in table.rows)
    return replace(table, columns=(*table.columns, Column("", words=True)), rows=tuple(rows))


def _headed(titles: Sequence[str], words: int) -> tuple[Column, ...]:
    return tuple(Column(title, words=place < words) for place, title in enumerate(titles))


def _of_one(
    title: str, curve: RobustnessCurve, heads: Sequence[str], words: int, rows: Sequence[Row]
) -> Table:
    records = curve.records
    title = f"{title}, {len(records)} images, {records.norm} ε = {eps_text(curve.eps)}"
    caption = f"{INTERVALS} {UPPER_BOUND}"
    return Table(columns=_headed(heads, words), rows=tuple(rows), title=title, caption=caption)


def ranking(
    runs: RunLike | Sequence[RunLike],
    losses: Sequence[RejectionLoss] = RANKED,
    *,
    figures: bool = False,
) -> list[tuple[Table, list[int]]]:
    """One table per group of comparable runs: same images, threat model, budget and engine.

    Args:
        runs: Runs, curves or result folders.
        losses: The rejection losses.
        figures: Whether it is a leaderboard: by the first loss, with robustness at alpha = 1, clean
            figures and costs.

    Returns:
        The tables, each with the positions of its runs.
    """
    several = as_runs(runs)
    curves, names = [run.curve for run in several], labels(several)
    stars = [comparison.starred(curves, loss) for loss in losses]
    seen = [comparison.seen_status(curve) for curve in curves]

    def row(place: int) -> list[tuple[Column, Cell]]:
        curve, cells = curves[place], [(Column("run", words=True), Cell(names[place]))]
        for loss, best in zip(losses, stars, strict=True):
            total, interval = curve.total_robust_loss(loss), curve.total_robust_loss_interval(loss)
            cells.append((Column(loss_text(loss)), loss_cell(total, interval, place in best)))
        cells.append((Column("audit", words=True), Cell(comparison.audit_status(curve))))
        cells += _figures(several[place]) if figures else []
        if any(seen):
            cells.append((Column("threat", words=True), Cell(seen[place] or MISSING)))
        attacks = comparison.ground_of(curve).attacks or MISSING
        cells.append((Column("images"), count_cell(len(curve.records))))
        return [*cells, (Column("attacks", words=True), Cell(attacks))]

    groups = comparison.grouped(curves)
    if figures:
        order = [[curve.total_robust_loss(loss) for loss in losses] for curve in curves]
        groups = [sorted(places, key=order.__getitem__) for places in groups]
    tables = []
    for places in groups:
        title = _title(comparison.ground_of(curves[places[0]]), with_digest=len(groups) > 1)
        caption = "" if figures or places is not groups[-1] else _CAPTION
        table = Table.of([row(place) for place in places], title=title, caption=caption)
        tables.append((table, places))
    return tables


def _figures(run: Run) -> list[tuple[Column, Cell]]:
    clean = clean_metrics(run.curve.records)
    return [
        (Column("robust, α = 1"), share_cell(run.curve.accuracy_at(1.0))),
        (Column("clean acc."), share_cell(clean.accuracy_with_rejection)),
        (Column("clean rej."), share_cell(clean.rejection_rate)),
        (Column("passes/image"), count_cell(run.passes_per_image)),
    ]


def _title(ground: comparison.Ground, *, with_digest: bool) -> str:
    # Two groups may differ by their images alone, which only a digest tells apart.
    digest = f" {ground.images[:8]}" if with_digest and ground.engine else ""
    words = [
        " ".join(filter(None, [str(ground.num_images), ground.dataset, f"images{digest}"])),
        f"{ground.norm} ε = {eps_text(ground.eps)}",
        ground.attacks and f"budget {ground.attacks}",
        f"engine {ground.engine}" if ground.engine else "",
    ]
    return ", ".join(filter(None, words))


def ranked_rows(
    runs: RunLike | Sequence[RunLike], losses: Sequence[RejectionLoss] = RANKED
) -> list[dict[str, Any]]:
    """`ranking` as plain rows, one per run; comparable runs have the same `group`."""
    several = as_runs(runs)
    curves = [run.curve for run in several]
    stars = {loss.name: comparison.starred(curves, loss) for loss in losses}
    rows = []
    for number, places in enumerate(comparison.grouped(curves)):
        for place in places:
            row = {"group": number, **comparison.tidy_row(curves[place], losses)}
            row["name"] = several[place].name
            rows.append(row | {f"{name}_best": place in best for name, best in stars.items()})
    return rows


def traditional(runs: RunLike | Sequence[RunLike]) -> Table:
    """Clean figures and robust accuracy with detection, as in the paper's appendix; no ranks."""
    several, rows = as_runs(runs), []
    for run, name in zip(several, labels(several), strict=True):
        clean = clean_metrics(run.curve.records)
        rows.append(
            [
                (Column("Run", words=True), Cell(name)),
                (Column("Threat", words=True), Cell(run.budget)),
                (Column("Images"), count_cell(len(run.curve.records))),
                (Column("Acc. with rej. ↑"), share_cell(clean.accuracy_with_rejection, 2)),
                (Column("Rej. rate ↓"), share_cell(clean.rejection_rate, 2)),
                (Column("F1-like ↑"), share_cell(clean.f1_like, 2)),
                (
                    Column("Robust acc. with det. ↑"),
                    share_cell(clean.robust_accuracy_with_detection, 2),
                ),
            ]
        )
    return Table.of(rows, title="Traditional metrics", caption=UPPER_BOUND)
