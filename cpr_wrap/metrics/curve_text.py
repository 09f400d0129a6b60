"""How a robustness curve shows itself in a terminal and in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from cpr_wrap._text import percent

if TYPE_CHECKING:
    from cpr_wrap.metrics.curve import RobustnessCurve


def _title(curve: RobustnessCurve) -> str:
    return f"{len(curve.records)} images, {curve.records.norm} eps={curve.eps:g}"


def as_text(curve: RobustnessCurve) -> str:
    """Three lines: what it is, the alphas, the accuracies under them."""
    alphas = [f"{alpha:g}" for alpha in curve.alphas]
    shares = [percent(curve.accuracy_at(alpha)) for alpha in curve.alphas]
    widths = [max(map(len, pair)) for pair in zip(alphas, shares, strict=True)]
    lines = [
        head.ljust(12) + "  ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True))
        for head, cells in (("  alpha", alphas), ("  robust", shares))
    ]
    return "\n".join([f"RobustnessCurve({_title(curve)})", *lines])


def as_html(curve: RobustnessCurve) -> str:
    """The same as a small table."""
    heads = "".join(f"<th>{alpha:g}</th>" for alpha in curve.alphas)
    cells = "".join(f"<td>{percent(curve.accuracy_at(alpha))}</td>" for alpha in curve.alphas)
    return (
        f"<table><caption>Robustness with rejection, {escape(_title(curve))}</caption>"
        f"<tr><th>alpha</th>{heads}</tr><tr><th>robust</th>{cells}</tr></table>"
    )
