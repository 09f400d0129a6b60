"""Tables of several runs; only comparable runs are ranked together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpr_wrap._text import MISSING, eps_text
from cpr_wrap.metrics import RampLoss, RejectionLoss, StepLoss, clean_metrics
from cpr_wrap.metrics.comparison import (
    Ground,
    audit_status,
    ground_of,
    grouped,
    seen_status,
    starred,
    tidy_row,
)
from cpr_wrap.report.run import Run, RunLike, as_runs, labels
from cpr_wrap.report.table import Cell, Column, Table
from cpr_wrap.report.tables import UPPER_BOUND, count_cell, loss_text, share_cell

RANKED: tuple[RejectionLoss, ...] = (StepLoss(0.05), RampLoss(2))
"""The losses that are compared where nobody asks for others."""

_CAPTION = (
    "Best: the smallest loss of its table, beyond chance on the shared images (paired test, 95 %), "
    "of a run whose audit did not fail. In parentheses: 95 % intervals over images."
)


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
    stars = [starred(curves, loss) for loss in losses]
    seen = any(map(seen_status, curves))
    more = ("robust, α = 1", "clean acc.", "clean rej.", "passes/image")
    columns = (
        Column("run", words=True),
        *(Column(loss_text(loss)) for loss in losses),
        Column("audit", words=True),
        *(Column(title) for title in more if figures),
        *([Column("threat", words=True)] if seen else []),
        Column("images"),
        Column("attacks", words=True),
    )

    def row(place: int) -> tuple[Cell, ...]:
        curve = curves[place]
        return (
            Cell(names[place]),
            *(
                _loss(several[place], loss, place in best)
                for loss, best in zip(losses, stars, strict=True)
            ),
            Cell(audit_status(curve)),
            *(_figures(several[place]) if figures else ()),
            *([Cell(seen_status(curve) or MISSING)] if seen else []),
            count_cell(len(curve.records)),
            Cell(ground_of(curve).attacks or MISSING),
        )

    groups = grouped(curves)
    if figures:
        order = [[curve.total_robust_loss(loss) for loss in losses] for curve in curves]
        groups = [sorted(places, key=order.__getitem__) for places in groups]
    return [
        (
            Table(
                columns=columns,
                rows=tuple(map(row, places)),
                title=_title(ground_of(curves[places[0]]), with_digest=len(groups) > 1),
                caption="" if figures or places is not groups[-1] else _CAPTION,
            ),
            places,
        )
        for places in groups
    ]


def _loss(run: Run, loss: RejectionLoss, best: bool) -> Cell:
    total = run.curve.total_robust_loss(loss)
    interval = run.curve.total_robust_loss_interval(loss)
    return Cell(f"{total:.3f} ({interval.low:.3f}–{interval.high:.3f})", total, best)


def _figures(run: Run) -> tuple[Cell, ...]:
    clean = clean_metrics(run.curve.records)
    return (
        share_cell(run.curve.accuracy_at(1.0)),
        share_cell(clean.accuracy_with_rejection),
        share_cell(clean.rejection_rate),
        count_cell(run.passes_per_image),
    )


def _title(ground: Ground, *, with_digest: bool) -> str:
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
    stars = {loss.name: starred(curves, loss) for loss in losses}
    rows = []
    for number, places in enumerate(grouped(curves)):
        for place in places:
            row = {"group": number, **tidy_row(curves[place], losses)}
            row["name"] = several[place].name
            rows.append(row | {f"{name}_best": place in best for name, best in stars.items()})
    return rows


def traditional(runs: RunLike | Sequence[RunLike]) -> Table:
    """Clean figures and robust accuracy with detection, as in the paper's appendix; no ranks."""
    several = as_runs(runs)
    titles = ("Acc. with rej. ↑", "Rej. rate ↓", "F1-like ↑", "Robust acc. with det. ↑")
    columns = (
        *(Column(title, words=True) for title in ("Run", "Threat")),
        Column("Images"),
        *map(Column, titles),
    )

    def row(run: Run, name: str) -> tuple[Cell, ...]:
        clean = clean_metrics(run.curve.records)
        shares = (
            *(clean.accuracy_with_rejection, clean.rejection_rate, clean.f1_like),
            clean.robust_accuracy_with_detection,
        )
        start = (Cell(name), Cell(run.budget), count_cell(len(run.curve.records)))
        return (*start, *(share_cell(share, 2) for share in shares))

    return Table(
        columns=columns,
        rows=tuple(map(row, several, labels(several))),
        title="Traditional metrics",
        caption=UPPER_BOUND,
    )
