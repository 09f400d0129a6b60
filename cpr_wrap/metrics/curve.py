"""The robustness curve: robust error by the radius within which a rejection is an error."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from html import escape
from textwrap import indent
from typing import Any, Literal, cast

import torch
from torch import Tensor

from cpr_wrap._checks import data_frame, import_extra
from cpr_wrap._text import percent
from cpr_wrap.metrics import evidence
from cpr_wrap.metrics.certificate import Certificate
from cpr_wrap.metrics.clean import clean_metrics
from cpr_wrap.metrics.intervals import (
    LEVEL,
    Band,
    Interval,
    clopper_pearson,
    mean_interval,
    share_band,
)
from cpr_wrap.metrics.losses import (
    PAPER_ALPHAS,
    PAPER_LOSSES,
    ImageLoss,
    LossLike,
    Numbers,
    as_loss,
    fractions,
    image_losses,
    interpolate,
    like,
    trapezoid_total_loss,
)
from cpr_wrap.metrics.records import Records, inward, plain_rows
from cpr_wrap.metrics.theory import Theorem1Bound, Theorem2Curve, theorems_of

_BAND_POINTS = 201  # a plot draws the band on a grid, the curve itself at every jump


def check_alphas(alphas: object) -> tuple[float, ...]:
    """Shares of eps in ascending order, completed with 0 and 1; anything else is refused."""
    try:
        values = sorted({float(alpha) for alpha in alphas})  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        values = []
    # Written so that NaN is refused as well.
    if not values or not all(0 <= alpha <= 1 for alpha in values):
        raise ValueError(f"alphas: expected shares of eps in [0, 1], got {alphas}")
    return tuple(sorted({0.0, *values, 1.0}))


@dataclass(frozen=True, eq=False, repr=False)
class RobustnessCurve:
    """Robust error with rejection at every alpha in [0, 1], computed from per-image records.

    An image is an error at alpha if an accepted mistake was found within eps, or a rejected input
    within alpha · eps. The records hold the smallest distances, so the curve is a step function
    that is known at every alpha. A success at distance r counts at every radius of at least r.

    Rounding: `inward` reduces distances by one float32 spacing before they are compared, so that a
    point stored in float32 on the surface of its ball counts as inside. At alpha = 0 only a
    rejected clean input counts.

    Example:
        >>> from cpr_wrap.metrics import Records
        >>> rows = [
        ...     {"index": 0, "label": 3, "clean_label": 3, "outer_broken": True, "outer_by": "PGD",
        ...      "outer_distance": 0.2, "rejected_radius": None, "rejected_by": ""},
        ...     {"index": 1, "label": 5, "clean_label": 5, "outer_broken": False, "outer_by": "",
        ...      "outer_distance": None, "rejected_radius": 0.15, "rejected_by": "LCIA"},
        ... ]
        >>> curve = RobustnessCurve(Records.from_rows(rows, eps=0.3, norm="Linf"))
        >>> curve.error_at(0.0), curve.error_at(0.5)
        (0.5, 1.0)
        >>> curve.total_robust_loss("step:0.05")
        0.5
    """

    records: Records  #: What the evaluation found.
    _: KW_ONLY
    #: Where the curve is tabulated. They affect tables and the paper's interpolation, not
    #: `error_at` or the exact total robust loss.
    alphas: tuple[float, ...] = PAPER_ALPHAS
    #: The images and the points found for them; None if they were not kept.
    points: evidence.Points | None = None
    #: How each image's points were found; empty if that was not kept.
    origins: tuple[evidence.Origins, ...] = ()
    passes: tuple[evidence.StageCost, ...] = ()  #: What each stage cost.
    #: How the evaluation was run; None for records from elsewhere.
    settings: evidence.Settings | None = None
    #: Versions, digests, notes; None for records from elsewhere.
    provenance: evidence.Provenance | None = None
    #: Name of the run, and where model and images came from.
    about: evidence.About = field(default=evidence.About())
    #: Results of the audit; None if the run was not audited.
    checks: tuple[evidence.Check, ...] | None = None
    #: How the rule was calibrated; None if it was not.
    calibration: evidence.CalibrationFacts | None = None
    #: What each attack does alone, if that was measured.
    ablation: tuple[evidence.AblationRow, ...] | None = None
    #: Areas under risk–coverage curves, for rules with a cheap score.
    coverage: evidence.Coverage | None = None
    #: What a longer search found on a sample; None if the budget has none.
    effort: evidence.Effort | None = None
    #: What is proven about the same images; None without certification.
    certificate: Certificate | None = None

    def __post_init__(self) -> None:
        if len(self.records) == 0:
            raise ValueError("expected records of at least one image, got none")
        if self.certificate is not None:
            self.certificate.check(self.records)
        object.__setattr__(self, "alphas", check_alphas(self.alphas))

    @property
    def eps(self) -> float:
        """Adversarial budget, in pixel units."""
        return self.records.eps

    @cached_property
    def radii(self) -> Tensor:
        """Smallest rejected radii, less rounding `(N,)`; infinite if none was found."""
        return inward(self.records.rejected_radius, self.eps)

    @cached_property
    def _unbroken_radii(self) -> Tensor:
        return self.radii[~self.records.outer_broken].sort().values

    def error_within(self, radius: Numbers) -> Numbers:
        """Robust error if rejecting an input within `radius`, in pixel units, is an error."""
        limit = torch.as_tensor(radius, dtype=torch.float64, device="cpu")
        rejected = torch.searchsorted(self._unbroken_radii, limit.contiguous(), right=True)
        broken = len(self.records) - len(self._unbroken_radii)
        return like(radius, (rejected + broken).double() / len(self.records))

    def error_at(self, alpha: Numbers) -> Numbers:
        """Robust error with rejection s(alpha).

        Args:
            alpha: A fraction of eps in [0, 1], or a tensor of them in any shape.

        Returns:
            A number, or float64 errors in the shape and on the device of `alpha`.
        """
        return like(alpha, self.error_within(fractions(alpha) * self.eps))

    def accuracy_at(self, alpha: Numbers) -> Numbers:
        """Robustness with rejection 1 - s(alpha); see `error_at`."""
        return 1 - self.error_at(alpha)

    def interpolated_error_at(self, alpha: Numbers) -> Numbers:
        """Linear interpolation between the tabulated alphas, as in the paper.

        Args:
            alpha: A fraction of eps in [0, 1], or a tensor of them.

        Returns:
            A number, or float64 errors in the shape and on the device of `alpha`.
        """
        knots = torch.tensor(self.alphas, dtype=torch.float64)
        return like(alpha, interpolate(fractions(alpha), knots, self.error_at(knots)))

    @property
    def robust_error(self) -> float:
        """Standard robust error s(1), where every rejection within eps is an error."""
        return self.error_at(1.0)

    @property
    def robust_error_with_detection(self) -> float:
        """Robust error s(0), where only rejecting a clean input is an error."""
        return self.error_at(0.0)

    @property
    def p_rej(self) -> float:
        """Share of images that are rejected when clean and have no accepted mistake."""
        return float((~self.records.outer_broken & (self.radii == 0)).double().mean())

    def image_losses(self, loss: LossLike | ImageLoss, *, per_image: bool = False) -> Tensor:
        """Loss per image `(N,)`, whose mean is the total robust loss; see `total_robust_loss`."""
        found = self.records
        index = found.index if per_image else None
        return image_losses(found.outer_broken, self.radii, loss, self.eps, index)

    def total_robust_loss(
        self,
        loss: LossLike | ImageLoss,
        *,
        method: Literal["exact", "trapezoid"] = "exact",
        per_image: bool = False,
        spacing: float = 0.01,
    ) -> float:
        """Mean loss over images, from accepted mistakes and from rejections that attacks can force.

        Args:
            loss: A rejection loss, its name (`step:0.05`, `ramp:2`), or any function of the
                distance in pixel units that does not increase and stays in [0, 1].
            method: `exact` is the mean over images of 1 if an accepted mistake was found, else the
                loss at the smallest rejected radius. `trapezoid` is the paper's approximation from
                `alphas`.
            per_image: Whether the loss is a function l(r, index) of the distance and the image's
                number, for costs that differ between images.
            spacing: Grid of the trapezoid rule, in alpha.

        Returns:
            The total robust loss, in [0, 1].
        """
        if method == "exact":
            return float(self.image_losses(loss, per_image=per_image).mean())
        if method != "trapezoid":
            raise ValueError(f"method: expected 'exact' or 'trapezoid', got {method!r}")
        if per_image:
            raise ValueError("the trapezoid rule needs one loss for all images; use method='exact'")
        return trapezoid_total_loss(self, as_loss(cast("LossLike", loss)), spacing)

    def error_band(self, alphas: Tensor, *, level: float = LEVEL) -> Band:
        """Exact pointwise intervals of the error at alphas `(M,)`, over the choice of images."""
        errors = self.error_at(fractions(alphas).flatten())
        return share_band((errors * len(self.records)).round(), len(self.records), level)

    def error_interval(self, alpha: float, *, level: float = LEVEL) -> Interval:
        """Exact confidence interval of the error at one alpha, over the choice of images.

        It covers the choice of images, not stronger attacks.
        """
        images = len(self.records)
        return clopper_pearson(round(self.error_at(alpha) * images), images, level)

    def total_robust_loss_interval(
        self, loss: LossLike | ImageLoss, *, per_image: bool = False, level: float = LEVEL
    ) -> Interval:
        """Interval of the exact total robust loss, over the choice of images."""
        return mean_interval(self.image_losses(loss, per_image=per_image), level)

    def table(self, *, level: float = LEVEL) -> list[dict[str, float]]:
        """One row per tabulated alpha: error, its exact interval, and accuracy."""
        alphas = torch.tensor(self.alphas, dtype=torch.float64)
        band = self.error_band(alphas, level=level)
        columns = {
            "alpha": alphas,
            "radius": alphas * self.eps,
            "error": self.error_at(alphas),
            "error_low": band.low,
            "error_high": band.high,
            "accuracy": self.accuracy_at(alphas),
        }
        if self.certificate is not None:
            columns["certified_accuracy"] = self.certificate.accuracy_at(alphas)
        return plain_rows(columns)

    @property
    def passes_per_image(self) -> float:
        """Forwards and backwards per image, over all stages."""
        return sum(stage.passes for stage in self.passes) / len(self.records)

    @property
    def audited(self) -> bool | None:
        """Whether the audit passed; None if the run was not audited."""
        if self.checks is None:
            return None
        return all(check.passed is not False for check in self.checks)

    def theorems(self) -> tuple[Theorem1Bound, Theorem2Curve] | None:
        """The paper's theorems for this network's boundary distances.

        None if the rule is not a consistency check, or its norm differs from the threat model's.
        """
        rule = None if self.settings is None else self.settings.rule
        if rule is None or self.records.boundary_distance is None:
            return None
        if not rule.rejects_near_boundary or rule.norm != self.records.norm:
            return None
        return theorems_of(self.records, rule.reach)

    def to_frame(self) -> Any:
        """The table as a pandas DataFrame."""
        return data_frame(self.table())

    def summary(self) -> dict[str, Any]:
        """The usual figures as plain values, ready for JSON."""
        found, proven = self.records, self.certificate
        return {
            "images": len(found),
            "norm": found.norm,
            "eps": self.eps,
            "clean": clean_metrics(found).to_dict(),
            "robust_error": self.robust_error,
            "robust_error_with_detection": self.robust_error_with_detection,
            "p_rej": self.p_rej,
            "accuracy_at": {f"{alpha:g}": self.accuracy_at(alpha) for alpha in self.alphas},
            "total_robust_loss": {loss.name: self.total_robust_loss(loss) for loss in PAPER_LOSSES},
            "first_broken_by": found.first_broken_by(),
            "first_rejected_by": found.first_rejected_by(),
            "certified": None if proven is None else proven.summary(self.alphas),
        }

    def jumps(self) -> tuple[list[float], list[float]]:
        """Alphas at which the curve falls, with both ends, and its robustness from there on."""
        ends = torch.tensor([0.0, self.eps], dtype=torch.float64)
        radii = torch.cat([ends, self.radii[self.radii <= self.eps]]).unique()
        return (radii / self.eps).tolist(), (1 - self.error_within(radii)).tolist()

    def plot(
        self, ax: Any = None, *, label: str | None = None, band: bool = True, **style: Any
    ) -> Any:
        """Draw the exact step function and its 95 % intervals, and dashed what is certified.

        Args:
            ax: Matplotlib axes to draw on; new ones by default.
            label: Name for the legend.
            band: Whether to draw the intervals.
            style: What matplotlib takes for a line, e.g. its color.

        Returns:
            The axes.
        """
        if ax is None:
            _, ax = import_extra("matplotlib.pyplot").subplots()
        (line,) = ax.step(*self.jumps(), where="post", label=label, **style)
        color, alphas = line.get_color(), torch.linspace(0, 1, _BAND_POINTS, dtype=torch.float64)
        grid = alphas.tolist()
        if self.certificate is not None:
            proven, found = self.certificate.accuracy_at(alphas), self.accuracy_at(alphas)
            ax.plot(grid, proven.tolist(), linestyle="--", linewidth=1, color=color)
            ax.fill_between(grid, proven, found, color=color, alpha=0.08, linewidth=0)
        if band:
            ends = self.error_band(alphas)
            ax.fill_between(grid, 1 - ends.high, 1 - ends.low, color=color, alpha=0.15, linewidth=0)
        ax.set(
            xlabel=r"$\alpha$ (rejecting within $\alpha\,\epsilon$ is an error)",
            ylabel="robustness with rejection",
            xlim=(0, 1),
            ylim=(0, 1),
        )
        return ax

    def _shown(self, **form: Any) -> str:
        from tabulate import tabulate

        alphas = ["alpha", *(f"{alpha:g}" for alpha in self.alphas)]
        shares = ["robust", *(percent(self.accuracy_at(alpha)) for alpha in self.alphas)]
        return str(tabulate([alphas, shares], disable_numparse=True, stralign="right", **form))

    @property
    def _title(self) -> str:
        return f"{len(self.records)} images, {self.records.norm} eps={self.eps:g}"

    def __repr__(self) -> str:
        table = indent(self._shown(tablefmt="plain"), "  ")
        return f"RobustnessCurve({self._title})\n{table}"

    def _repr_html_(self) -> str:
        table = self._shown(tablefmt="html", headers="firstrow")
        return f"<p>Robustness with rejection, {escape(self._title)}</p>{table}"
