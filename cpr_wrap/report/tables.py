"""What is tabulated about one run: its curve, losses, clean figures, attacks and their ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cpr_wrap._text import MISSING, count_text, duration, eps_text, percent, percent_range
from cpr_wrap.metrics import (
    CLEAN,
    PAPER_LOSSES,
    RampLoss,
    RejectionLoss,
    RobustnessCurve,
    StepLoss,
    Theorem1Bound,
    Theorem2Curve,
    clean_metrics,
)
from cpr_wrap.metrics.certificate import Certificate
from cpr_wrap.report.table import Cell, Column, Row, Table

INTERVALS = (
    "95% intervals over images, not over attacks: exact (Clopper-Pearson) for shares, bootstrap "
    "for other means."
)
UPPER_BOUND = (
    "Attacks may have missed something: robustness is an upper bound on the true one, a loss a "
    "lower bound."
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


def loss_cell(total: float) -> Cell:
    """A total robust loss."""
    return Cell(f"{total:.3f}", total)


def curve_values(curve: RobustnessCurve) -> Table:
    """Robustness at the curve's alphas, with intervals."""
    heads = ["α", "radius", "robustness", "95% interval"]
    heads += ["certified"] if curve.certificate is not None else []
    columns = tuple(Column(head) for head in heads)
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
    return _of_one("Robustness with rejection", curve, columns, rows)


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
    both = curve.theorems() if theory else None
    known: list[tuple[str, Theorem1Bound | Theorem2Curve]] = (
        [] if both is None else [("Thm. 1", both[0]), ("Thm. 2", both[1])]
    )
    theorems: list[tuple[str, Theorem1Bound | Theorem2Curve | Certificate]] = [
        (name, theorem) for name, theorem in known if theorem.applicable
    ]
    if curve.certificate is not None:
        theorems.append(("certified, at most", curve.certificate))
    heads = ("rejection loss", "total robust loss", "95% interval", *(name for name, _ in theorems))
    rows = []
    for loss in wanted:
        interval = curve.total_robust_loss_interval(loss)
        rows.append(
            (
                Cell(loss_text(loss)),
                loss_cell(curve.total_robust_loss(loss)),
                Cell(f"{interval.low:.3f}–{interval.high:.3f}"),
                *(loss_cell(theorem.total_robust_loss(loss)) for _, theorem in theorems),
            )
        )
    return _of_one("Total robust loss", curve, _headed(heads, 1), rows)


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
    passes: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for stage in curve.passes:
        passes[stage.attack] = passes.get(stage.attack, 0) + stage.passes
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
    title: str, curve: RobustnessCurve, columns: tuple[Column, ...], rows: Sequence[Row]
) -> Table:
    records = curve.records
    subject = f"{title}, {len(records)} images, {records.norm} ε = {eps_text(curve.eps)}"
    caption = f"{INTERVALS} {UPPER_BOUND}"
    return Table(columns=columns, rows=tuple(rows), title=subject, caption=caption)
