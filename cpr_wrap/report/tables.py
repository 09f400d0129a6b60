"""What is tabulated about one run, and about several; only comparable runs are ranked together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from cpr_wrap.report.run import RunLike, as_runs, labels
from cpr_wrap.report.table import Cell, Column, Entries, Table

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
    rows = curve.table()
    columns: dict[str, Entries] = {
        "α": [Cell(f"{row['alpha']:g}", row["alpha"]) for row in rows],
        "radius": [Cell(f"{row['radius']:.4g}", row["radius"]) for row in rows],
        "robustness": [share_cell(row["accuracy"]) for row in rows],
        "95% interval": [
            Cell(percent_range(1 - row["error_high"], 1 - row["error_low"])) for row in rows
        ],
    }
    if curve.certificate is not None:
        columns["certified"] = [share_cell(row["certified_accuracy"]) for row in rows]
    return _of_one("Robustness with rejection", curve, columns)


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
    intervals = [curve.total_robust_loss_interval(loss) for loss in wanted]
    columns: dict[str, Entries] = {
        "rejection loss": [loss_text(loss) for loss in wanted],
        "total robust loss": [loss_cell(curve.total_robust_loss(loss)) for loss in wanted],
        "95% interval": [Cell(f"{ends.low:.3f}–{ends.high:.3f}") for ends in intervals],
    }
    for name, bound in bounds.items():
        columns[name] = [loss_cell(bound.total_robust_loss(loss)) for loss in wanted]
    return _of_one("Total robust loss", curve, columns)


def _of_one(title: str, curve: RobustnessCurve, columns: Mapping[str, Entries]) -> Table:
    records = curve.records
    title = f"{title}, {len(records)} images, {records.norm} ε = {eps_text(curve.eps)}"
    return Table.of(columns, title=title, caption=f"{INTERVALS} {UPPER_BOUND}")


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
    columns: dict[str, Entries] = {"": ["images", *titles.values()]}
    for name, known in groups.items():
        shares = [share_cell(known.get(key), 2) for key in titles]
        columns[name] = [count_cell(known["images"]), *shares]
    return Table.of(columns, title="Clean figures")


def attack_costs(curve: RobustnessCurve) -> Table:
    """Which attack found what, and what it cost where that was counted."""
    broken, rejected = curve.records.first_broken_by(), curve.records.first_rejected_by()
    # An attack may have several stages; their costs add up under its name.
    passes, seconds = Counter[str](), dict[str, float]()
    for stage in curve.passes:
        passes[stage.attack] += stage.passes
        seconds[stage.attack] = seconds.get(stage.attack, 0.0) + stage.seconds
    first = [CLEAN] if CLEAN in {**broken, **rejected} else []
    names = list(dict.fromkeys([*first, *passes, *broken, *rejected]))
    columns: dict[str, Entries] = {
        "attack": names,
        "mistakes": [count_cell(broken.get(name)) for name in names],
        "nearest rejections": [count_cell(rejected.get(name)) for name in names],
    }
    if passes:
        columns["passes"] = [count_cell(passes.get(name)) for name in names]
        columns["time"] = [
            Cell(duration(seconds[name]), seconds[name]) if name in seconds else Cell(MISSING)
            for name in names
        ]
    return Table.of(columns, title="Attacks")


def ablation_rows(curve: RobustnessCurve) -> Table:
    """What each attack achieves alone."""
    rows = curve.ablation or ()
    columns: dict[str, Entries] = {
        "attack": [row.attack for row in rows],
        "goal": [row.goal for row in rows],
        "α": [Cell(f"{row.alpha:g}", row.alpha) for row in rows],
        "robustness": [share_cell(row.robustness) for row in rows],
        "found": [count_cell(row.found) for row in rows],
        "passes/image": [count_cell(row.passes_per_image) for row in rows],
    }
    return Table.of(columns, title="Ablation")


def with_bars(table: Table, column: int = 2, width: int = 20) -> Table:
    """Append a column that draws the shares of another column as bars."""
    rows = ((*row, Cell("█" * round(width * (row[column].value or 0.0)))) for row in table.rows)
    return replace(table, columns=(*table.columns, Column("", words=True)), rows=tuple(rows))


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
    curves = [run.curve for run in several]
    columns: list[tuple[str, Entries]] = [("run", labels(several))]
    for loss in losses:
        best = comparison.starred(curves, loss)
        totals = [
            loss_cell(
                curve.total_robust_loss(loss), curve.total_robust_loss_interval(loss), place in best
            )
            for place, curve in enumerate(curves)
        ]
        columns.append((loss_text(loss), totals))
    columns.append(("audit", [comparison.audit_status(curve) for curve in curves]))
    groups = comparison.grouped(curves)
    if figures:
        columns += _figures(curves).items()
        order = [[curve.total_robust_loss(loss) for loss in losses] for curve in curves]
        groups = [sorted(places, key=order.__getitem__) for places in groups]
    seen = [comparison.seen_status(curve) for curve in curves]
    if any(seen):
        columns.append(("threat", [status or MISSING for status in seen]))
    columns.append(("images", [count_cell(len(curve.records)) for curve in curves]))
    columns.append(("attacks", [comparison.attacks_of(curve) or MISSING for curve in curves]))
    whole, tables = Table.of(columns), []
    for places in groups:
        title = _title(comparison.ground_of(curves[places[0]]), with_digest=len(groups) > 1)
        caption = "" if figures or places is not groups[-1] else _CAPTION
        rows = tuple(whole.rows[place] for place in places)
        tables.append((replace(whole, rows=rows, title=title, caption=caption), places))
    return tables


def _figures(curves: Sequence[RobustnessCurve]) -> dict[str, Entries]:
    clean = [clean_metrics(curve.records) for curve in curves]
    return {
        "robust, α = 1": [share_cell(curve.accuracy_at(1.0)) for curve in curves],
        "clean acc.": [share_cell(figures.accuracy_with_rejection) for figures in clean],
        "clean rej.": [share_cell(figures.rejection_rate) for figures in clean],
        "passes/image": [count_cell(c.passes_per_image if c.passes else None) for c in curves],
    }


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
    several = as_runs(runs)
    columns: dict[str, Entries] = {
        "Run": labels(several),
        "Threat": [run.budget for run in several],
        "Images": [count_cell(len(run.curve.records)) for run in several],
    }
    for title, name in {
        "Acc. with rej. ↑": "accuracy_with_rejection",
        "Rej. rate ↓": "rejection_rate",
        "F1-like ↑": "f1_like",
        "Robust acc. with det. ↑": "robust_accuracy_with_detection",
    }.items():
        shares = [getattr(clean_metrics(run.curve.records), name) for run in several]
        columns[title] = [share_cell(share, 2) for share in shares]
    return Table.of(columns, title="Traditional metrics", caption=UPPER_BOUND)
