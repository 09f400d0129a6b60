"""The tables of a run and of several runs, in the paper's layouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cpr_wrap.metrics import (
    PAPER_LOSSES,
    RampLoss,
    RejectionLoss,
    RobustnessCurve,
    StepLoss,
    clean_metrics,
)
from cpr_wrap.report.confidence import error_band, loss_intervals
from cpr_wrap.report.run import Run, RunLike, as_runs
from cpr_wrap.report.table import Cell, Column, Row, Table, mark_best
from cpr_wrap.report.wording import (
    INTERVALS,
    MISSING,
    UPPER_BOUND,
    eps_text,
    loss_range,
    loss_text,
    percent,
    percent_range,
    short_loss_text,
)

TABLE_1_LOSSES: tuple[RejectionLoss, ...] = (
    *(StepLoss(alpha0) for alpha0 in (0.0, 0.05, 0.1)),
    *(RampLoss(t) for t in (2, 4)),
)
"""The losses of the paper's Table 1; PAPER_LOSSES has those of its appendix as well."""

_NO_CELL = Cell(MISSING)


def comparison(runs: Sequence[RunLike], *, full: bool = False) -> Table:
    """Total robust losses of several methods: the paper's Table 1.

    Runs that share a name and a data set are one method under several budgets. Of two budgets the
    smaller is called seen and the larger unseen, as in the paper.

    Args:
        runs: Runs, curves or result folders.
        full: All of the paper's losses, not only those of its Table 1.
    """
    losses = PAPER_LOSSES if full else TABLE_1_LOSSES
    methods = _Methods(as_runs(runs))
    columns = [
        Column(
            short_loss_text(loss),
            group=_kind(loss),
            above=heading,
            alone=f"{short} {loss_text(loss)}".strip(),
        )
        for heading, short in methods.headings()
        for loss in losses
    ]

    def entries(run: Run | None) -> list[Cell]:
        if run is None:
            return [_NO_CELL] * len(losses)
        totals = [run.curve.total_robust_loss(loss) for loss in losses]
        return [Cell(f"{total:.3f}", total) for total in totals]

    rows = [[cell for run in row for cell in entries(run)] for row in methods.rows]
    return methods.table(columns, rows, [True] * len(columns), "Total robust loss")


def traditional(runs: Sequence[RunLike]) -> Table:
    """Clean figures and robust accuracy with detection of several methods, as in the appendix."""
    methods = _Methods(as_runs(runs))
    clean = ("Acc. with rej. ↑", "Rej. rate ↓", "F1-like ↑")
    columns = [Column(title, group="Clean inputs") for title in clean]
    robust = "Robust acc. with det. ↑"
    columns += [
        Column(robust, group=heading, alone=f"{short} {robust}".strip())
        for heading, short in methods.headings()
    ]
    smallest = [column.title.endswith("↓") for column in columns]

    def entries(row: Sequence[Run | None]) -> list[Cell]:
        run = next(run for run in row if run is not None)
        figures = clean_metrics(run.curve.records)
        shares = (figures.accuracy_with_rejection, figures.rejection_rate, figures.f1_like)
        robust = [
            None if r is None else clean_metrics(r.curve.records).robust_accuracy_with_detection
            for r in row
        ]
        return [_share(share) for share in (*shares, *robust)]

    rows = [entries(row) for row in methods.rows]
    return methods.table(columns, rows, smallest, "Traditional metrics")


def curve_values(curve: RobustnessCurve) -> Table:
    """Robustness at the curve's alphas, with intervals."""
    alphas = torch.tensor(curve.alphas, dtype=torch.float64)
    band = error_band(curve, alphas)
    columns = (Column("α"), Column("radius"), Column("robustness"), Column("95% interval"))
    rows = [
        (
            Cell(f"{alpha:g}", alpha),
            Cell(f"{alpha * curve.eps:.4g}", alpha * curve.eps),
            Cell(percent(curve.accuracy_at(alpha)), curve.accuracy_at(alpha)),
            Cell(percent_range(1 - high, 1 - low)),
        )
        for alpha, low, high in zip(
            curve.alphas, band.low.tolist(), band.high.tolist(), strict=True
        )
    ]
    return _of_one("Robustness with rejection", curve, columns, rows)


def losses(curve: RobustnessCurve, wanted: Sequence[RejectionLoss] = PAPER_LOSSES) -> Table:
    """Total robust losses of one curve, with intervals."""
    columns = (
        Column("rejection loss", words=True),
        Column("total robust loss"),
        Column("95% interval"),
    )
    rows = []
    for loss, interval in zip(wanted, loss_intervals(curve, wanted), strict=True):
        total = curve.total_robust_loss(loss)
        between = loss_range(interval.low, interval.high)
        rows.append((Cell(loss_text(loss)), Cell(f"{total:.3f}", total), Cell(between)))
    return _of_one("Total robust loss", curve, columns, rows)


def compare_table(
    runs: Sequence[RunLike],
    format: str = "markdown",  # noqa: A002 - the name people expect
    *,
    full: bool = False,
) -> str:
    """`comparison` as text, in `text`, `markdown`, `latex` or `csv`."""
    return comparison(runs, full=full).render(format)


def traditional_table(
    runs: Sequence[RunLike],
    format: str = "markdown",  # noqa: A002 - the name people expect
) -> str:
    """`traditional` as text, in `text`, `markdown`, `latex` or `csv`."""
    return traditional(runs).render(format)


def curve_table(
    curve: RobustnessCurve,
    format: str = "text",  # noqa: A002 - the name people expect
) -> str:
    """`curve_values` as text, in `text`, `markdown`, `latex` or `csv`."""
    return curve_values(curve).render(format)


def losses_table(
    curve: RobustnessCurve,
    format: str = "text",  # noqa: A002 - the name people expect
) -> str:
    """`losses` as text, in `text`, `markdown`, `latex` or `csv`."""
    return losses(curve).render(format)


def _kind(loss: RejectionLoss) -> str:
    if isinstance(loss, StepLoss):
        return "Step rej. loss"
    return "Ramp rej. loss" if isinstance(loss, RampLoss) else ""


def _share(share: float | None) -> Cell:
    text = percent(share, 2)
    return _NO_CELL if share is None or text == MISSING else Cell(text, share)


def _of_one(
    title: str, curve: RobustnessCurve, columns: tuple[Column, ...], rows: Sequence[Row]
) -> Table:
    records = curve.records
    subject = f"{title}, {len(records)} images, {records.norm} ε = {eps_text(curve.eps)}"
    caption = f"{INTERVALS} {UPPER_BOUND}"
    return Table(columns=columns, rows=tuple(rows), title=subject, caption=caption)


class _Methods:
    """Runs arranged by data set, method and budget, in the order in which they were given.

    Attributes:
        keys: Data set and name of each method.
        rows: Its runs, one a budget from small to large, None where there is none.
        budgets: How many budgets there are.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.keys = list(dict.fromkeys((run.dataset, run.name) for run in runs))
        # Rows of a data set stand together.
        order = list(dict.fromkeys(dataset for dataset, _ in self.keys))
        self.keys.sort(key=lambda key: order.index(key[0]))
        self._scales = {
            dataset: sorted({_budget(run) for run in runs if run.dataset == dataset})
            for dataset in order
        }
        self.budgets = max(len(scale) for scale in self._scales.values())
        self.rows: list[list[Run | None]] = [[None] * self.budgets for _ in self.keys]
        for run in runs:
            row = self.rows[self.keys.index((run.dataset, run.name))]
            place = self._scales[run.dataset].index(_budget(run))
            if row[place] is not None:
                raise ValueError(
                    f"expected one run of each method and budget, got two called {run.name!r} "
                    f"at {run.budget}; give them different names"
                )
            row[place] = run

    def headings(self) -> list[tuple[str, str]]:
        """A long and a short heading for each budget."""
        scales = list(self._scales.values())
        shared = all(scale == scales[0] for scale in scales)
        if self.budgets == 2:
            names = ["seen", "unseen"]
        else:
            names = [str(place + 1) if self.budgets > 1 else "" for place in range(self.budgets)]
        headings = []
        for place, name in enumerate(names):
            norm, eps = scales[0][place] if shared else ("", 0.0)
            budget = f"{norm} ε = {eps_text(eps)}" if shared else ""
            if self.budgets == 2:
                long = f"{name.capitalize()} attacks" + (f" ({budget})" if shared else "")
            else:
                long = budget or f"Attacks {name}".strip()
            headings.append((long, name if self.budgets <= 2 or not shared else budget))
        return headings

    def table(
        self,
        columns: Sequence[Column],
        rows: list[list[Cell]],
        smallest: Sequence[bool],
        title: str,
    ) -> Table:
        """The table, with the best of each column marked within its data set."""
        for dataset in self._scales:
            places = [place for place, key in enumerate(self.keys) if key[0] == dataset]
            for column, low in enumerate(smallest):
                cells = mark_best([rows[place][column] for place in places], smallest=low)
                for place, cell in zip(places, cells, strict=True):
                    rows[place][column] = cell
        heads = [Column("Method", words=True)]
        several = len(self._scales) > 1
        if several:
            heads.insert(0, Column("Dataset", words=True))
        full = []
        for (dataset, name), row in zip(self.keys, rows, strict=True):
            front = [Cell(dataset), Cell(name)] if several else [Cell(name)]
            full.append((*front, *row))
        subject = "" if several else next(iter(self._scales))
        return Table(
            columns=(*heads, *columns),
            rows=tuple(full),
            title=", ".join(filter(None, [title, subject])),
            caption=UPPER_BOUND,
        )


def _budget(run: Run) -> tuple[str, float]:
    # Rounded, since a budget that went through float32 is the same budget.
    return run.curve.records.norm, float(f"{run.curve.eps:.6g}")
