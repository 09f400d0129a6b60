"""A robustness curve in matplotlib, which is imported when asked for and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cpr_wrap._checks import import_extra

if TYPE_CHECKING:
    from cpr_wrap.metrics.curve import RobustnessCurve

_BAND_POINTS = 201  # the band is drawn on a grid, the curve itself at every jump


def jumps(curve: RobustnessCurve) -> tuple[list[float], list[float]]:
    """Alphas at which the curve falls, with both ends, and its robustness from there on."""
    ends = torch.tensor([0.0, curve.eps], dtype=torch.float64)
    radii = torch.cat([ends, curve.radii[curve.radii <= curve.eps]]).unique()
    return (radii / curve.eps).tolist(), (1 - curve.error_within(radii)).tolist()


def plot_curve(
    curve: RobustnessCurve,
    ax: Any = None,
    *,
    label: str | None = None,
    band: bool = True,
    **style: Any,
) -> Any:
    """Draw the exact step function and its 95 % intervals, and dashed what is certified.

    Args:
        curve: The curve.
        ax: Axes to draw on; new ones by default.
        label: Name for the legend.
        band: Whether to draw the intervals.
        style: What matplotlib takes for a line, e.g. its colour.

    Returns:
        The axes.
    """
    if ax is None:
        _, ax = import_extra("matplotlib.pyplot").subplots()
    (line,) = ax.step(*jumps(curve), where="post", label=label, **style)
    grid = torch.linspace(0, 1, _BAND_POINTS, dtype=torch.float64)
    if curve.certificate is not None:
        proven = curve.certificate.accuracy_at(grid).tolist()
        found, colour = curve.accuracy_at(grid).tolist(), line.get_color()
        ax.plot(grid.tolist(), proven, linestyle="--", linewidth=1, color=colour)
        ax.fill_between(grid.tolist(), proven, found, color=colour, alpha=0.08, linewidth=0)
    if band:
        ends = curve.error_band(grid)
        low, high = (1 - ends.high).tolist(), (1 - ends.low).tolist()
        ax.fill_between(grid.tolist(), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    ax.set(
        xlabel=r"$\alpha$ (rejecting within $\alpha\,\epsilon$ is an error)",
        ylabel="robustness with rejection",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    return ax
