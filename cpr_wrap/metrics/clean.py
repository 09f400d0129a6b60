"""Metrics of selective classification: accuracy with rejection, selective risk and coverage."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from cpr_wrap.metrics.records import REJECTED, Records


def rejection_rate(predicted: Tensor) -> float:
    """Share of answers `(N,)` that are rejections (-1)."""
    _check_pairs(predicted, predicted)
    return float((predicted == REJECTED).double().mean())


def accuracy_with_rejection(predicted: Tensor, label: Tensor) -> float:
    """Share of accepted inputs that are classified correctly.

    Args:
        predicted: Answers `(N,)`, -1 where rejected.
        label: True labels `(N,)`.

    Returns:
        The accuracy; NaN if every input is rejected.

    Example:
        >>> import torch
        >>> accuracy_with_rejection(torch.tensor([3, -1, 5, 1]), torch.tensor([3, 7, 5, 2]))
        0.6666666666666666
    """
    _check_pairs(predicted, label)
    accepted = predicted != REJECTED
    return float((predicted == label)[accepted].double().mean())


def f1_like(predicted: Tensor, label: Tensor) -> float:
    """Harmonic mean of accuracy with rejection and the share of accepted inputs.

    Args:
        predicted: Answers `(N,)`, -1 where rejected.
        label: True labels `(N,)`.

    Returns:
        The mean; 0 if every input is rejected.
    """
    coverage = 1 - rejection_rate(predicted)
    accuracy = accuracy_with_rejection(predicted, label)
    if math.isnan(accuracy) or accuracy + coverage == 0:
        return 0.0
    return 2 * accuracy * coverage / (accuracy + coverage)


def robust_accuracy_with_detection(records: Records) -> float:
    """Share of images that are right when clean and have no accepted mistake within eps."""
    if len(records) == 0:
        raise ValueError("expected records of at least one image, got none")
    error = (records.clean_label != records.label) | records.outer_broken
    return 1 - float(error.double().mean())


@dataclass(frozen=True, kw_only=True)
class CleanMetrics:
    """The paper's traditional metrics of one evaluation."""

    #: Accuracy among accepted clean inputs; NaN if none is accepted.
    accuracy_with_rejection: float
    rejection_rate: float  #: Share of clean inputs rejected.
    f1_like: float  #: Harmonic mean of that accuracy and the share accepted.
    #: Share right when clean and without an accepted mistake.
    robust_accuracy_with_detection: float

    def to_dict(self) -> dict[str, float | None]:
        """Plain values, None in place of NaN, which JSON lacks."""
        return {k: None if math.isnan(v) else v for k, v in asdict(self).items()}


def clean_metrics(records: Records) -> CleanMetrics:
    """Compute the traditional metrics from records."""
    return CleanMetrics(
        robust_accuracy_with_detection=robust_accuracy_with_detection(records),
        accuracy_with_rejection=accuracy_with_rejection(records.clean_label, records.label),
        rejection_rate=rejection_rate(records.clean_label),
        f1_like=f1_like(records.clean_label, records.label),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskCoverage:
    """Selective risk and coverage at every threshold of a score.

    There is one entry per distinct score, because a threshold accepts all inputs with the same
    score or none. Along the entries `(M,)`, scores decrease and coverages increase.
    """

    thresholds: Tensor  #: The distinct scores.
    coverages: Tensor  #: Share of inputs with at least that score.
    selective_risks: Tensor  #: Share of mistakes among them.
    generalised_risks: Tensor  #: Share of inputs that are accepted mistakes.

    @property
    def aurc(self) -> float:
        """Area under selective risk over coverage.

        Linear between entries; constant below the smallest coverage.
        """
        return _area(self.coverages, self.selective_risks, float(self.selective_risks[0]))

    @property
    def augrc(self) -> float:
        """Area under generalized risk over coverage (Traub et al., 2024).

        Linear between entries and the origin. It is the mean risk of an accepted mistake over all
        thresholds, and equals (1 - AUROC) · acc · (1 - acc) + (1 - acc)² / 2, where AUROC says how
        well the score separates mistakes.
        """
        return _area(self.coverages, self.generalised_risks, 0.0)


def risk_coverage(scores: Tensor, correct: Tensor) -> RiskCoverage:
    """Selective risk and coverage at every threshold of a score; a larger score is more certain.

    Under attack, pass the score and correctness at each adversarial point. The curve then describes
    how thresholds perform against that attack.

    Args:
        scores: Scores `(N,)`, not NaN; ties are one threshold.
        correct: Whether the predicted class is right, rejected or not `(N,)`, bool.

    Returns:
        The curve, in float64 on the CPU.

    Example:
        >>> import torch
        >>> found = risk_coverage(torch.tensor([0.9, 0.8, 0.6]), torch.tensor([True, True, False]))
        >>> found.coverages.tolist()[1], found.selective_risks.tolist()[1]
        (0.6666666666666666, 0.0)
    """
    _check_pairs(scores, correct)
    if correct.dtype != torch.bool:
        raise TypeError(f"correct: expected torch.bool, got {correct.dtype}")
    if bool(scores.isnan().any()):
        raise ValueError("scores: expected numbers, got NaN")
    ranked, order = scores.detach().cpu().double().sort(descending=True)
    mistakes = (~correct.cpu()[order]).double().cumsum(dim=0)
    # A tied group is accepted as a whole: only its last member makes an entry.
    last = torch.cat([ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool)])
    accepted = torch.arange(1, len(ranked) + 1, dtype=torch.float64)[last]
    return RiskCoverage(
        thresholds=ranked[last],
        coverages=accepted / len(ranked),
        selective_risks=mistakes[last] / accepted,
        generalised_risks=mistakes[last] / len(ranked),
    )


def _area(coverages: Tensor, risks: Tensor, at_zero: float) -> float:
    x = torch.cat([coverages.new_zeros(1), coverages])
    y = torch.cat([risks.new_full((1,), at_zero), risks])
    return float(torch.trapezoid(y, x))


def _check_pairs(one: Tensor, other: Tensor) -> None:
    if one.dim() != 1 or len(one) == 0 or one.shape != other.shape:
        raise ValueError(
            "expected two columns (N,) of at least one entry, "
            f"got shapes {tuple(one.shape)} and {tuple(other.shape)}"
        )
