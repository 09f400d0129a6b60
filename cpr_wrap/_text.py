"""How numbers, budgets and times read, in tables, pages and messages alike."""

from __future__ import annotations

import math

MISSING = "–"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent, e.g. `12.3%`, or a dash where there is none (None or NaN)."""
    if share is None or math.isnan(share):
        return MISSING
    return f"{100 * share:.{digits}f}%"


def percent_range(low: float, high: float) -> str:
    """An interval of shares in percent, e.g. `84.3–90.8%`."""
    return f"{100 * low:.1f}–{percent(high)}"


def count_text(number: float | None) -> str:
    """A count with thousands set apart, rounded if it is not whole, or a dash."""
    return MISSING if number is None else f"{round(number):,}"


def eps_text(eps: float) -> str:
    """A budget the way people write it, e.g. `8/255` or `0.3`."""
    short = f"{eps:.4g}"
    if float(short) == eps:
        return short
    levels = round(255 * eps)
    # Loose enough for a budget that went through float32.
    if levels > 0 and abs(255 * eps - levels) < 1e-4:
        return f"{levels}/255"
    return short


def duration(seconds: float) -> str:
    """A time as text, e.g. `2.5 s`, `4 min 05 s` or `2 h 01 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
