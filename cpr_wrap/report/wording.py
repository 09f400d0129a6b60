"""How numbers, budgets and losses read in tables, charts and pages."""

from __future__ import annotations

import math

from cpr_wrap.metrics.losses import RampLoss, RejectionLoss, StepLoss

MISSING = "–"

INTERVALS = (
    "95% intervals over images, not over attacks: bootstrap, and exact (Clopper-Pearson) where all "
    "images agree."
)
UPPER_BOUND = (
    "Attacks may have missed something: robustness is an upper bound on the true one, a loss a "
    "lower bound."
)


def eps_text(eps: float) -> str:
    """A budget the way people write it.

    Example:
        >>> eps_text(8 / 255), eps_text(0.3), eps_text(0.0055)
        ('8/255', '0.3', '0.0055')
    """
    short = f"{eps:.4g}"
    if float(short) == eps:
        return short
    levels = round(255 * eps)
    # Loose enough for a budget that went through float32.
    if levels > 0 and abs(255 * eps - levels) < 1e-4:
        return f"{levels}/255"
    return short


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent, or a dash where there is none (None or NaN).

    Example:
        >>> percent(0.12345), percent(None)
        ('12.3%', '–')
    """
    if share is None or math.isnan(share):
        return MISSING
    return f"{100 * share:.{digits}f}%"


def percent_range(low: float, high: float) -> str:
    """An interval of shares in percent.

    Example:
        >>> percent_range(0.843, 0.908)
        '84.3–90.8%'
    """
    return f"{100 * low:.1f}–{100 * high:.1f}%"


def loss_range(low: float, high: float) -> str:
    """An interval of losses.

    Example:
        >>> loss_range(0.0851, 0.145)
        '0.085–0.145'
    """
    return f"{low:.3f}–{high:.3f}"


def count_text(number: float) -> str:
    """A count with thousands set apart, rounded if it is not whole.

    Example:
        >>> count_text(1234567)
        '1,234,567'
    """
    return f"{round(number):,}"


def seconds_text(seconds: float) -> str:
    """A duration in the largest unit that leaves it above one.

    Example:
        >>> seconds_text(0.25), seconds_text(90), seconds_text(7300)
        ('0.25 s', '1.5 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


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


def short_loss_text(loss: RejectionLoss) -> str:
    """The same without the kind, for columns under a heading that names it."""
    return loss_text(loss).removeprefix("step ").removeprefix("ramp ")
