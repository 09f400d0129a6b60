"""Comparisons: of runs on the same images against the same adversary, and with the best known.

A rank between runs on other images, or under another budget of attacks, says nothing about the
models. So runs are put into groups that share all of that, and are ranked inside a group only,
where a test image by image says if a difference is more than chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cpr_wrap._text import eps_text, percent
from cpr_wrap.metrics.clean import clean_metrics
from cpr_wrap.metrics.curve import RobustnessCurve
from cpr_wrap.metrics.intervals import LEVEL
from cpr_wrap.metrics.losses import LossLike, as_loss


class Ground(NamedTuple):
    """All that two runs must share to be ranked."""

    dataset: str
    images: str  # digest of images, labels and numbers; without it, the numbers
    num_images: int
    norm: str
    eps: float  # to six digits: one that went through float32 is the same budget
    attacks: str  # name of the budget of attacks, with what was added to it
    engine: int  # 0 where it is not known


def ground_of(curve: RobustnessCurve) -> Ground:
    """What a run may be compared on."""
    records, made = curve.records, curve.provenance
    return Ground(
        dataset=curve.about.dataset,
        images=str(records.index.tolist()) if made is None else made.data,
        num_images=len(records),
        norm=records.norm,
        eps=float(f"{curve.eps:.6g}"),
        attacks=attacks_of(curve),
        engine=0 if made is None else made.engine,
    )


def attacks_of(curve: RobustnessCurve) -> str:
    """Name of the budget of attacks; points from elsewhere, and joined runs, are said."""
    if curve.settings is None:
        return ""
    name = curve.settings.budget
    if name == "merged" and curve.provenance is not None:
        return f"{name} from {len(curve.provenance.merged)}"
    given = any(stage.startswith("GivenPoints") for stage in curve.settings.stages)
    return f"{name} + given points" if given else name


def audit_status(curve: RobustnessCurve) -> str:
    """`passed`, `failed` or `not audited`."""
    return {True: "passed", False: "failed", None: "not audited"}[curve.audited]


def seen_status(curve: RobustnessCurve) -> str:
    """`seen` up to the budget that the network was trained for, `unseen` beyond; else nothing."""
    trained = curve.about.trained_eps
    if trained is None:
        return ""
    return "seen" if curve.eps <= trained * (1 + 1e-6) else "unseen"


def grouped(curves: Sequence[RobustnessCurve]) -> list[list[int]]:
    """Places of the runs that may be ranked among each other, in the order they were given."""
    groups: dict[Ground, list[int]] = {}
    for place, curve in enumerate(curves):
        groups.setdefault(ground_of(curve), []).append(place)
    return list(groups.values())


def starred(curves: Sequence[RobustnessCurve], loss: LossLike) -> set[int]:
    """Places of the runs that lose least in their group by more than chance.

    A run whose audit failed is never among them.
    """
    stars = set()
    for group in grouped(curves):
        fair = [place for place in group if curves[place].audited is not False]
        best = clear_winner([curves[place].image_losses(loss) for place in fair])
        if best is not None:
            stars.add(fair[best])
    return stars


def tidy_row(curve: RobustnessCurve, losses: Sequence[LossLike]) -> dict[str, Any]:
    """A run as one row of plain values, with the same ASCII keys in every version."""
    ground, settings, clean = ground_of(curve), curve.settings, clean_metrics(curve.records)
    row: dict[str, Any] = {
        "name": curve.about.name,
        "model": curve.about.model,
        "rule": "" if settings is None else settings.rule.name,
        "settings": "" if settings is None else settings.rule.text,
        "dataset": ground.dataset,
        "norm": ground.norm,
        "eps": curve.eps,
        "seen": seen_status(curve),
        "n": ground.num_images,
        "images": ground.images[:16],
        "budget": ground.attacks,
        "engine": ground.engine,
        "clean_accuracy": clean.accuracy_with_rejection,
        "clean_rejection": clean.rejection_rate,
        "robust_error": curve.robust_error,
    }
    for each in map(as_loss, losses):
        interval = curve.total_robust_loss_interval(each)
        row[each.name] = curve.total_robust_loss(each)
        row[f"{each.name}_low"], row[f"{each.name}_high"] = interval.low, interval.high
    return row | {
        "passes": sum(stage.passes for stage in curve.passes),
        "seconds": 0.0 if curve.provenance is None else curve.provenance.seconds,
        "audit": audit_status(curve),
    }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One mean loss minus another over the same images.

    Its chance says how often a gap at least as large arises if every image's sign were a coin's.
    """

    gap: float
    chance: float
    images: int

    @property
    def sign(self) -> int:
        """1 or -1 where the gap is beyond chance, at 95 %; 0 where chance may be all there is."""
        return 0 if self.chance > 1 - LEVEL else (1 if self.gap > 0 else -1)

    def __str__(self) -> str:
        shown = f"p = {self.chance:.3f}" if self.chance >= 0.001 else "p < 0.001"
        return f"{self.gap:+.3f} ({shown}, {self.images} images)"


def sign_flip_test(apart: Tensor) -> float:
    """How often differences `(N,)` sum to as much if every one's sign were a coin's, two-sided.

    Exact where all differences are of one size (the sign test) and for up to 13 of them; by
    drawing signs else, with a fixed seed.
    """
    from scipy.stats import binomtest, permutation_test

    apart = apart.detach().double().cpu()
    apart = apart[apart != 0]
    if len(apart) == 0:
        return 1.0
    if bool((apart.abs() == apart[0].abs()).all()):
        return float(binomtest(int((apart > 0).sum()), len(apart)).pvalue)
    found = permutation_test(
        (apart.numpy(),),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=9_999,
        batch=max(1, 4_000_000 // len(apart)),
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def paired(first: Tensor, second: Tensor) -> Difference:
    """The mean of the first minus that of the second, of losses `(N,)` of the same images."""
    apart = first.double() - second.double()
    return Difference(gap=float(apart.mean()), chance=sign_flip_test(apart), images=len(apart))


def paired_loss(
    first: RobustnessCurve, second: RobustnessCurve, loss: LossLike
) -> Difference | None:
    """The first's total robust loss minus the second's on the images of both; None without any."""
    numbers = (first.records.index.numpy(), second.records.index.numpy())
    both, *rows = np.intersect1d(*numbers, assume_unique=True, return_indices=True)
    if len(both) == 0:
        return None
    return paired(first.image_losses(loss)[rows[0]], second.image_losses(loss)[rows[1]])


def clear_winner(losses: Sequence[Tensor]) -> int | None:
    """Which of several loses least by more than chance; None where none does.

    The least mean must beat every other one in a paired test at 95 %. That holds at 95 % for any
    number of rivals: a winner by chance has to beat the runner-up by chance. Each rival has losses
    `(N,)` of the same images.
    """
    if len(losses) < 2:
        return None
    means = torch.stack([each.double().mean() for each in losses])
    best = int(means.argmin())
    others = (each for place, each in enumerate(losses) if place != best)
    return best if all(paired(losses[best], each).sign < 0 for each in others) else None


_BEST_KNOWN = {
    ("cifar10", "Linf"): (8 / 255, 0.7528, "RobustBench, MeanSparse WRN-94-16"),
    ("imagenet", "Linf"): (4 / 255, 0.6212, "RobustBench, MeanSparse Swin-L"),
}
"""Eps, robust accuracy under AutoAttack and its source, by data set and norm.

A figure at a smaller eps bounds what is known at larger ones.
"""


def implied(curve: RobustnessCurve) -> str:
    """What the robustness at alpha = 0 implies at eps / 2; empty where it implies nothing.

    A classifier that rejects or answers right within eps can be turned into one that never rejects
    and is as robust at eps / 2, however slowly (Tramèr, ICML 2022). So a curve that would imply
    more than the best classifier known is more likely a weak attack than a breakthrough; a second
    sentence says so.
    """
    share, norm = curve.accuracy_at(0.0), curve.records.norm
    if share == 0 or not bool(curve.records.rejected_radius.isfinite().any()):
        return ""
    half = curve.eps / 2
    text = (
        f"{percent(share)} at alpha 0 implies a classifier without rejection, however slow, with "
        f"as much robust accuracy at {norm} {eps_text(half)} (Tramèr 2022)."
    )
    known_eps, known, source = _BEST_KNOWN.get((curve.about.dataset, norm), (torch.inf, 0.0, ""))
    if half < known_eps * (1 - 1e-6):
        return text
    best = f"the best known at {eps_text(known_eps)}, {percent(known)} ({source})"
    if 1 - curve.error_interval(0.0).high > known:
        return f"{text} That is more than {best}: a weak attack is the more likely explanation."
    return f"{text} That does not exceed {best}."
