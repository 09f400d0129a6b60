"""A robustness curve in matplotlib, which is imported when asked for and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cpr_wrap._checks import import_extra

if TYPE_CHECKING:
    from cpr_wrap.metrics.curve import RobustnessCurve

_BAND_POINTS = 201  # the band is drawn on a grid, the curve itself at every jump


def plot_curve(
    curve: RobustnessCurve, ax: Any = None, *, label: str | None = None, seed: int = 0
) -> Any:
    """Draw the exact step function and its 95 % bootstrap band.

    Args:
        curve: The curve.
        ax: Axes to draw on; new ones by default.
        label: Name for the legend.
        seed: Seed of the bootstrap.

    Returns:
        The axes.
    """
    if ax is None:
        _, ax = import_extra("matplotlib.pyplot").subplots()
    ends = torch.tensor([0.0, curve.eps], dtype=torch.float64)
    radii = torch.cat([ends, curve.radii[curve.radii.isfinite()]]).unique()
    accuracy = 1 - curve.error_within(radii)
    grid = torch.linspace(0, 1, _BAND_POINTS, dtype=torch.float64)
    band = curve.error_band(grid, seed=seed)
    alphas = radii / curve.eps
    (line,) = ax.step(alphas.tolist(), accuracy.tolist(), where="post", label=label)
    ax.fill_between(
        grid.tolist(),
        (1 - band.high).tolist(),
        (1 - band.low).tolist(),
        step="post",
        alpha=0.2,
        color=line.get_color(),
        linewidth=0,
    )
    ax.set(
        xlabel=f"alpha (rejecting within alpha · {curve.eps:g} is an error)",
        ylabel="robustness with rejection",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    return ax
