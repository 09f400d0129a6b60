"""The robustness curve: robust error as a function of how small a rejected perturbation counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor

from cpr_wrap._checks import import_extra
from cpr_wrap.metrics import curve_text
from cpr_wrap.metrics.clean import clean_metrics
from cpr_wrap.metrics.intervals import (
    Band,
    Interval,
    bootstrap_band,
    bootstrap_interval,
    clopper_pearson,
)
from cpr_wrap.metrics.losses import PAPER_LOSSES, ImageLoss, LossLike, as_loss, interpolate
from cpr_wrap.metrics.records import Records, inward
from cpr_wrap.metrics.total_loss import (
    image_losses,
    image_losses_by_index,
    trapezoid_total_loss,
)

PAPER_ALPHAS = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 1.0)


@dataclass(frozen=True, eq=False, repr=False)
class RobustnessCurve:
    """Robust error with rejection at every alpha in [0, 1], from per-image records alone.

    An image is an error at alpha if an accepted mistake was found within eps, or a rejected input
    within alpha · eps. Since the records hold the smallest distance of each, this is a step
    function known at every alpha, and a success at distance r counts at every radius from r on.

    Rounding: radii are compared after `inward` has moved them by one float32 spacing towards the
    image, so that a point stored in float32 on the surface of its ball counts inside it. At
    alpha = 0 only a rejected clean input counts.

    Attributes:
        records: What the evaluation found.
        alphas: Where the curve is tabulated; they decide about tables and about the paper's
            interpolation, never about `error_at` or the exact total robust loss.
        details: Settings, pass counts and the like that came with the records.
    """

    records: Records
    alphas: tuple[float, ...] = field(default=PAPER_ALPHAS, kw_only=True)
    details: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if len(self.records) == 0:
            raise ValueError("expected records of at least one image, got none")
        alphas = list(self.alphas)
        if not alphas or alphas != sorted(set(alphas)) or not 0 <= alphas[0] <= alphas[-1] <= 1:
            raise ValueError(f"alphas: expected numbers that rise within [0, 1], got {alphas}")

    @property
    def eps(self) -> float:
        """Adversarial budget, in pixel units."""
        return self.records.eps

    @cached_property
    def radii(self) -> Tensor:
        """Smallest rejected radii as they count `(N,)`, infinite where none was found."""
        return inward(self.records.rejected_radius, self.eps)

    @cached_property
    def _unbroken_radii(self) -> Tensor:
        return self.radii[~self.records.outer_broken].sort().values

    @overload
    def error_within(self, radius: float) -> float: ...
    @overload
    def error_within(self, radius: Tensor) -> Tensor: ...
    def error_within(self, radius: float | Tensor) -> float | Tensor:
        """Robust error if rejecting an input within `radius`, in pixel units, is an error."""
        limit = torch.as_tensor(radius, dtype=torch.float64, device="cpu")
        rejected = torch.searchsorted(self._unbroken_radii, limit.contiguous(), right=True)
        broken = len(self.records) - len(self._unbroken_radii)
        return _like(radius, (rejected + broken).double() / len(self.records))

    @overload
    def error_at(self, alpha: float) -> float: ...
    @overload
    def error_at(self, alpha: Tensor) -> Tensor: ...
    def error_at(self, alpha: float | Tensor) -> float | Tensor:
        """Robust error with rejection s(alpha), exact for the points found.

        Args:
            alpha: A fraction of eps in [0, 1], or a tensor of them in any shape.

        Returns:
            A number, or float64 errors in the shape and on the device of `alpha`.
        """
        return _like(alpha, self.error_within(_fractions(alpha) * self.eps))

    @overload
    def accuracy_at(self, alpha: float) -> float: ...
    @overload
    def accuracy_at(self, alpha: Tensor) -> Tensor: ...
    def accuracy_at(self, alpha: float | Tensor) -> float | Tensor:
        """Robustness with rejection 1 - s(alpha); see `error_at`."""
        return 1 - self.error_at(alpha)

    @overload
    def interpolated_error_at(self, alpha: float) -> float: ...
    @overload
    def interpolated_error_at(self, alpha: Tensor) -> Tensor: ...
    def interpolated_error_at(self, alpha: float | Tensor) -> float | Tensor:
        """The paper's reading between the tabulated alphas: straight lines.

        Args:
            alpha: A fraction of eps between the first and last of `alphas`, or a tensor of them.

        Returns:
            A number, or float64 errors in the shape and on the device of `alpha`.
        """
        wanted = _fractions(alpha)
        knots = torch.tensor(self.alphas, dtype=torch.float64)
        if bool((wanted < knots[0]).any() or (wanted > knots[-1]).any()):
            raise ValueError(
                f"the curve is tabulated from {self.alphas[0]:g} to {self.alphas[-1]:g}; "
                "include 0 and 1 in alphas, or use error_at, which needs no table"
            )
        return _like(alpha, interpolate(wanted, knots, self.error_at(knots)))

    @property
    def robust_error(self) -> float:
        """Standard robust error, where every rejection within eps is an error: s(1)."""
        return self.error_at(1.0)

    @property
    def robust_error_with_detection(self) -> float:
        """Robust error where only rejecting a clean input is an error: s(0)."""
        return self.error_at(0.0)

    @property
    def p_rej(self) -> float:
        """Share of images rejected when clean, of which no accepted mistake was found."""
        return float((~self.records.outer_broken & (self.radii == 0)).double().mean())

    @overload
    def image_losses(self, loss: LossLike) -> Tensor: ...
    @overload
    def image_losses(self, loss: ImageLoss, *, per_image: Literal[True]) -> Tensor: ...
    @overload
    def image_losses(self, loss: LossLike | ImageLoss, *, per_image: bool) -> Tensor: ...
    def image_losses(self, loss: LossLike | ImageLoss, *, per_image: bool = False) -> Tensor:
        """What each image adds to the total robust loss `(N,)`; see `total_robust_loss`."""
        found = self.records
        if per_image:
            function = cast("ImageLoss", loss)
            return image_losses_by_index(
                found.outer_broken, self.radii, found.index, function, self.eps
            )
        return image_losses(
            found.outer_broken, self.radii, as_loss(cast("LossLike", loss)), self.eps
        )

    def total_robust_loss(
        self,
        loss: LossLike | ImageLoss,
        *,
        rule: Literal["exact", "trapezoid"] = "exact",
        per_image: bool = False,
        spacing: float = 0.01,
    ) -> float:
        """Mean loss from accepted mistakes and from rejections the adversary can force.

        Args:
            loss: A rejection loss, its name (`step:0.05`, `ramp:2`), or any function of the
                distance in pixel units that never rises and stays in [0, 1].
            rule: `exact` is the mean over images of 1 where broken, else the loss at the smallest
                rejected radius. `trapezoid` is the paper's approximation from `alphas`.
            per_image: The loss is a function l(r, index) of the distance and the image's data-set
                index, for costs that differ between images.
            spacing: Grid of the trapezoid rule, in alpha.

        Returns:
            The total robust loss, in [0, 1].
        """
        if rule == "exact":
            return float(self.image_losses(loss, per_image=per_image).mean())
        if rule != "trapezoid":
            raise ValueError(f"rule: expected 'exact' or 'trapezoid', got {rule!r}")
        if per_image:
            raise ValueError("the trapezoid rule knows one loss for all images; use rule='exact'")
        return trapezoid_total_loss(self, as_loss(cast("LossLike", loss)), spacing)

    def _image_errors(self, alphas: Tensor) -> Tensor:
        rejected = self.radii[:, None] <= alphas[None] * self.eps
        return (self.records.outer_broken[:, None] | rejected).double()

    def error_band(
        self, alphas: Tensor, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
    ) -> Band:
        """Pointwise bootstrap intervals of the error at alphas `(M,)`, over images."""
        errors = self._image_errors(_fractions(alphas).flatten())
        return bootstrap_band(errors, level=level, resamples=resamples, seed=seed)

    def error_interval(
        self,
        alpha: float,
        *,
        method: Literal["bootstrap", "clopper-pearson"] = "bootstrap",
        level: float = 0.95,
        resamples: int = 1000,
        seed: int = 0,
    ) -> Interval:
        """Confidence interval of the error at one alpha, over the choice of images.

        It speaks about other images, not about stronger attacks. The exact `clopper-pearson` is
        the better choice when nearly all or nearly no images are errors.
        """
        errors = self._image_errors(_fractions(torch.tensor([alpha], dtype=torch.float64)))[:, 0]
        if method == "bootstrap":
            return bootstrap_interval(errors, level=level, resamples=resamples, seed=seed)
        if method != "clopper-pearson":
            raise ValueError(f"method: expected 'bootstrap' or 'clopper-pearson', got {method!r}")
        return clopper_pearson(int(errors.sum()), len(errors), level)

    def total_robust_loss_interval(
        self,
        loss: LossLike | ImageLoss,
        *,
        per_image: bool = False,
        level: float = 0.95,
        resamples: int = 1000,
        seed: int = 0,
    ) -> Interval:
        """Bootstrap interval of the exact total robust loss, over the choice of images."""
        losses = self.image_losses(loss, per_image=per_image)
        return bootstrap_interval(losses, level=level, resamples=resamples, seed=seed)

    def table(
        self, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
    ) -> list[dict[str, float]]:
        """One row a tabulated alpha: error, its bootstrap interval, and accuracy."""
        alphas = torch.tensor(self.alphas, dtype=torch.float64)
        band = self.error_band(alphas, level=level, resamples=resamples, seed=seed)
        columns = {
            "alpha": alphas,
            "radius": alphas * self.eps,
            "error": self.error_at(alphas),
            "error_low": band.low,
            "error_high": band.high,
            "accuracy": self.accuracy_at(alphas),
        }
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def to_frame(self) -> Any:
        """The table as a pandas DataFrame."""
        return import_extra("pandas", "pandas").DataFrame(self.table())

    def summary(self) -> dict[str, Any]:
        """The usual figures as plain values, ready for JSON."""
        found = self.records
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
        }

    def plot(self, ax: Any = None, *, label: str | None = None, seed: int = 0) -> Any:
        """Draw robustness over alpha with its bootstrap band; returns the matplotlib axes."""
        from cpr_wrap.metrics.curve_plot import plot_curve

        return plot_curve(self, ax, label=label, seed=seed)

    def __repr__(self) -> str:
        return curve_text.as_text(self)

    def _repr_html_(self) -> str:
        return curve_text.as_html(self)


def _fractions(alpha: float | Tensor) -> Tensor:
    fractions = torch.as_tensor(alpha, device="cpu").double()
    # Written so that NaN is refused as well.
    if not bool(((fractions >= 0) & (fractions <= 1)).all()):
        raise ValueError(f"alpha: expected fractions of eps in [0, 1], got {alpha}")
    return fractions


@overload
def _like(given: float, values: Tensor) -> float: ...
@overload
def _like(given: Tensor, values: Tensor) -> Tensor: ...
@overload
def _like(given: float | Tensor, values: Tensor) -> float | Tensor: ...
def _like(given: float | Tensor, values: Tensor) -> float | Tensor:
    return values.to(given.device) if isinstance(given, Tensor) else float(values)
