"""What may be compared with what: runs on the same images, against the same adversary.

A rank between runs on other images, or under another budget of attacks, says nothing about the
models. So runs are put into groups that share all of that, and are ranked inside a group only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cpr_wrap.metrics.clean import clean_metrics
from cpr_wrap.metrics.curve import RobustnessCurve
from cpr_wrap.metrics.losses import LossLike, as_loss
from cpr_wrap.metrics.paired import clear_winner

PASSED, FAILED, NOT_AUDITED = "passed", "failed", "not audited"
SEEN, UNSEEN = "seen", "unseen"
_GIVEN, _MERGED = "GivenPoints", "merged"


class Ground(NamedTuple):
    """All that two runs must share to be ranked.

    Attributes:
        dataset: Name of the data set.
        images: Digest of the images, their labels and numbers; the numbers alone where records
            came without a digest.
        num_images: How many images.
        norm: Norm of the adversary.
        eps: Its budget, to six digits: one that went through float32 is the same budget.
        attacks: Name of the budget of attacks, with what was added to it.
        engine: Revision of the engine; 0 where it is not known.
    """

    dataset: str
    images: str
    num_images: int
    norm: str
    eps: float
    attacks: str
    engine: int


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
    if name == _MERGED and curve.provenance is not None:
        return f"{name} from {len(curve.provenance.merged)}"
    given = any(stage.startswith(_GIVEN) for stage in curve.settings.stages)
    return f"{name} + given points" if given else name


def audit_status(curve: RobustnessCurve) -> str:
    """`passed`, `failed` or `not audited`."""
    return {True: PASSED, False: FAILED, None: NOT_AUDITED}[curve.audited]


def seen_status(curve: RobustnessCurve) -> str:
    """`seen` up to the budget that the network was trained for, `unseen` beyond; else nothing."""
    trained = curve.about.trained_eps
    if trained is None:
        return ""
    return SEEN if curve.eps <= trained * (1 + 1e-6) else UNSEEN


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
