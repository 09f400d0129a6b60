"""`advise`: which rule and setting loses least on this network, on these images, for this cost.

A loss only grows with the points found, so a candidate's loss so far is a lower bound of its final
one. The search attacks the candidate with the least bound until that one has had the full budget:
then no other can end below it, whatever further passes would find. Candidates whose bound is above
the leader's loss by more than chance get no more passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from cpr_wrap._checks import check_images, check_labels, check_number, check_positive
from cpr_wrap.attacks.ensemble import Budget, Listed
from cpr_wrap.data.images import gather
from cpr_wrap.evaluation.advice import (
    ADVISED,
    LEFT_OUT,
    STATUSES,
    TIED,
    Advice,
    Candidate,
    default_candidates,
    latency,
    rejected_share,
)
from cpr_wrap.evaluation.curve import find_budget, robustness_curve
from cpr_wrap.evaluation.preflight import check_threat, preflight
from cpr_wrap.evaluation.supplied import useful_points
from cpr_wrap.geometry import ThreatModel, threat
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.metrics.comparison import paired_loss
from cpr_wrap.metrics.losses import LossLike, RejectionLoss, as_loss, check_loss
from cpr_wrap.rule import RejectionRule
from cpr_wrap.rules import AcceptAll
from cpr_wrap.selective import SelectiveClassifier, network_device

Images = tuple[Tensor, Tensor]
Tell = Callable[[str], None]


def advise(
    model: nn.Module,
    x: Tensor | Dataset[Any] | DataLoader[Any],
    y: Tensor | None,
    eps: float,
    cost: LossLike = "step:0.05",
    *,
    validation: Images | None = None,
    candidates: Sequence[RejectionRule] | None = None,
    budget: str | Budget = "standard",
    screening: str | Budget = "quick",
    norm: str | ThreatModel | None = None,
    max_latency: float | None = None,
    max_clean_rejection: float | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    block_size: int | None = None,
    store: str | Path | None = None,
    progress: Tell | None = None,
    **settings: Any,
) -> Advice:
    """Find the rule and setting with the smallest total robust loss, for a cost of rejection.

    All candidates are screened with a small budget. Those that can still win are attacked with the
    full budget. Points found for one candidate are proposed to the others. The choice is made on
    validation images; the losses of the best are then measured on the other images.

    Args:
        model: A network, or a selective classifier, whose rule is then a candidate too.
        x: Images `(N, ...)` in [0, 1], or a data set or loader of (image, label).
        y: True classes `(N,)`; None for a data set or loader.
        eps: Budget of the adversary in pixel units.
        cost: What a rejection costs, where a mistake costs 1; see `total_robust_loss`.
        validation: Images and labels for the choice; by default every second image of x.
        candidates: Rules to try; by default a list of common ones.
        budget: The full budget, as in `robustness_curve`.
        screening: The budget that every candidate gets.
        norm: Threat model of the budget; by default the norm of the model's rule, or `Linf`.
        max_latency: Maximum time per prediction of one image, in seconds.
        max_clean_rejection: Maximum share of clean images that are rejected.
        seed: Seed of all random starts.
        batch_size: Batch size; by default what fits into memory.
        block_size: Images per block; by default chosen from their number.
        store: A folder for finished work; the same call resumes from it.
        progress: Function that gets a line of text about each step.
        **settings: Settings of the default candidates: `radii`, `steps`, `thresholds`.

    Returns:
        All candidates with their figures, the advised one first.

    Example:
        >>> from cpr_wrap import load_data, load_network
        >>> network = load_network("bundled:mnist-compact-at").network
        >>> data = load_data("mnist", num=60)
        >>> advice = advise(network, data.images, data.labels, 0.3, "ramp:2")  # doctest: +SKIP
        >>> print(advice.best.rule.describe(), advice.gain)  # doctest: +SKIP
    """
    eps, loss = check_number(eps, "eps"), as_loss(cost)
    check_loss(loss, eps)
    _check_limits(max_latency, max_clean_rejection)
    if not isinstance(model, SelectiveClassifier):
        model = SelectiveClassifier(model, AcceptAll())
    full, first = find_budget(budget), find_budget(screening)
    around = threat(norm or model.rule.norm or "Linf").name
    choosing, others = _halves(model, x, y, validation)
    seen = choosing[0]
    check_threat(threat(around), eps, seen[:1])
    preflight(model, seen)
    notes: list[str] = []
    if candidates is None:
        candidates, notes = default_candidates(model, *choosing, eps, around, **settings)
    elif settings:
        raise TypeError(f"candidates: expected without {', '.join(settings)}, which make others")
    if not candidates:
        raise ValueError("candidates: expected at least one rule, got none")
    field_ = [
        Candidate(model=m, clean_rejection=rejected_share(m, seen), latency=latency(m, seen))
        for m in map(model.with_rule, candidates)
    ]
    allowed = [c for c in field_ if _within(c, max_latency, max_clean_rejection)]
    if not allowed:
        raise ValueError(
            f"none of {len(field_)} candidates is within max_latency and max_clean_rejection; the "
            f"quickest takes {1000 * min(c.latency for c in field_):.3g} ms, the least clean "
            f"rejection is {min(c.clean_rejection for c in field_):.2%}"
        )
    run: dict[str, Any] = {"seed": seed, "norm": around, "store": store}
    run |= {"batch_size": batch_size, "block_size": block_size}
    search = _Search(allowed, choosing, eps, loss, full, first, run, progress or (lambda _: None))
    search.choose()
    search.report(others)
    ranked = sorted(field_, key=lambda c: (STATUSES.index(c.status), search.bound(c), c.passes))
    return Advice(
        candidates=tuple(ranked),
        cost=loss,
        eps=eps,
        norm=around,
        budget=full.name,
        images=(len(seen), len(others[0])),
        notes=tuple(notes),
    )


def _halves(
    model: SelectiveClassifier, x: Any, y: Tensor | None, validation: Images | None
) -> tuple[Images, Images]:
    """Images to choose on, and images to report on, on the model's device."""
    if not isinstance(x, Tensor):
        x, y = gather(x, y)
    if y is None:
        raise TypeError("y: expected labels for a tensor of images, got None")
    pairs = [(x, y)] if validation is None else [(x, y), validation]
    for images, labels in pairs:
        check_images(images)
        check_labels(labels, len(images))
    if validation is None:
        if len(x) < 2:
            raise ValueError("x: expected at least two images, to choose on one half, got one")
        pairs = [(x[1::2], y[1::2]), (x[::2], y[::2])]
    device = network_device(model.base, x.device)
    others, choosing = [(images.to(device), labels.to(device)) for images, labels in pairs]
    return choosing, others


def _check_limits(latency: float | None, rejection: float | None) -> None:
    if latency is not None:
        check_positive(latency, "max_latency")
    if rejection is not None and not 0 <= rejection <= 1:
        raise ValueError(f"max_clean_rejection: expected a share from 0 to 1, got {rejection}")


def _within(candidate: Candidate, slowest: float | None, most: float | None) -> bool:
    """Whether a candidate keeps the limits; otherwise it says why it does not."""
    if slowest is not None and candidate.latency > slowest:
        candidate.why = f"takes {1000 * candidate.latency:.3g} ms"
    if most is not None and candidate.clean_rejection > most:
        candidate.why = f"rejects {candidate.clean_rejection:.1%} of clean images"
    if candidate.why:
        candidate.status = LEFT_OUT
    return not candidate.why


_ONLY_POINTS = Listed(name="points")


@dataclass(eq=False)
class _Search:
    """Lowest bound first, until nobody can overtake the leader."""

    candidates: list[Candidate]
    images: Images
    eps: float
    cost: RejectionLoss
    budget: Budget
    screening: Budget
    run: dict[str, Any]
    tell: Tell
    finalists: list[Candidate] = field(default_factory=list)

    def bound(self, candidate: Candidate) -> float:
        """What a candidate loses at least."""
        curve = candidate.curve
        return float("inf") if curve is None else curve.total_robust_loss(self.cost)

    def running(self) -> list[Candidate]:
        """Those whose bound is no more than chance above the leader's loss."""
        leader = min(self.candidates, key=lambda c: (self.bound(c), c.passes))
        return [c for c in self.candidates if c is leader or not self._beaten(c, leader)]

    def _beaten(self, candidate: Candidate, leader: Candidate) -> bool:
        apart = paired_loss(_known(candidate), _known(leader), self.cost)
        assert apart is not None, "all candidates see the same images"
        return apart.sign > 0

    def choose(self) -> None:
        """Screen all candidates, then give the full budget to those that can still win."""
        count = len(self.candidates)
        for number, each in enumerate(self.candidates, 1):
            self.tell(f"screening {number} of {count}: {each.rule.describe()}")
            each.curve = self._attack(each.model, self.images, self.screening)
        curves = [_known(c) for c in self.candidates]
        for each in self.candidates:
            self._offer(each, curves)
        while waiting := [c for c in self.running() if not c.full]:
            picked = min(waiting, key=self.bound)
            self.tell(f"full budget, {len(waiting)} may still win: {picked.rule.describe()}")
            curves = [_known(c) for c in self.candidates if c is not picked]
            found = self._attack(picked.model, self.images, self.budget, picked.curve, curves)
            picked.curve, picked.full = _continued(_known(picked), found), True
            for each in self.running():
                if each is not picked:
                    self._offer(each, [found])
        self.finalists = self.running()
        for each in self.finalists:
            each.status = TIED
        min(self.finalists, key=lambda c: (c.passes, self.bound(c))).status = ADVISED

    def report(self, others: Images) -> None:
        """Measure the finalists, and the plain network, on images that chose nothing."""
        plain = [c for c in self.candidates if not c.rule.can_reject]
        shown = list(dict.fromkeys([*self.finalists, *plain]))
        found: list[RobustnessCurve] = []
        for each in shown:
            self.tell(f"on the other images: {each.rule.describe()}")
            found.append(self._attack(each.model, others, self.budget, None, found))
        for each, curve in zip(shown, found, strict=True):
            rivals = [c for c in found if c is not curve]
            judged = self._attack(each.model, others, _ONLY_POINTS, curve, rivals)
            each.reported = _continued(curve, judged)

    def _offer(self, candidate: Candidate, curves: Sequence[RobustnessCurve]) -> None:
        """Let a candidate judge points that were found for others."""
        known = _known(candidate)
        rivals = [curve for curve in curves if curve is not known]
        if any(len(useful_points(curve, known)[0]) for curve in rivals):
            found = self._attack(candidate.model, self.images, _ONLY_POINTS, known, rivals)
            candidate.curve = _continued(known, found)

    def _attack(
        self,
        model: SelectiveClassifier,
        images: Images,
        budget: Budget,
        known: RobustnessCurve | None = None,
        curves: Sequence[RobustnessCurve] = (),
    ) -> RobustnessCurve:
        """Attack a model, its own and others' points judged first."""
        parts = [useful_points(curve, known) for curve in curves]
        if known is not None:
            parts.append(useful_points(known))
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        given = (columns[0], columns[1]) if columns and len(columns[0]) else None
        return robustness_curve(model, *images, self.eps, budget=budget, points=given, **self.run)


def _known(candidate: Candidate) -> RobustnessCurve:
    assert candidate.curve is not None, "candidates are screened first"
    return candidate.curve


def _continued(before: RobustnessCurve, after: RobustnessCurve) -> RobustnessCurve:
    """The later curve, with the costs of both and the settings of the one that searched."""
    searched = before if after.settings and after.settings.budget == "points" else after
    return replace(after, passes=(*before.passes, *after.passes), settings=searched.settings)
