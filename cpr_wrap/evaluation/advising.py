"""`advise`: which rule and setting loses least on this network, on these images, for this cost.

A loss only grows with the points found, so a candidate's loss so far is a lower bound of its final
one. The search attacks the candidate with the least bound until that one has had the full budget:
then no other can end below it, whatever further passes would find. Candidates whose bound is above
the leader's loss by more than chance get no more passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from cpr_wrap._checks import check_number, check_positive
from cpr_wrap.attacks.ensemble import Budget, Listed
from cpr_wrap.data.images import gather
from cpr_wrap.engine.images import source_of
from cpr_wrap.evaluation.advice import (
    ADVISED,
    LEFT_OUT,
    STATUSES,
    TIED,
    Advice,
    Candidate,
    default_candidates,
    latency,
)
from cpr_wrap.evaluation.assemble import answers
from cpr_wrap.evaluation.curve import find_budget, robustness_curve
from cpr_wrap.evaluation.preflight import check_threat, place_of, preflight
from cpr_wrap.evaluation.supplied import useful_points
from cpr_wrap.geometry import ThreatModel, threat
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.metrics.comparison import paired
from cpr_wrap.metrics.losses import LossLike, RejectionLoss, as_loss, check_loss
from cpr_wrap.rule import RejectionRule
from cpr_wrap.rules import AcceptAll
from cpr_wrap.selective import SelectiveClassifier

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
    if max_latency is not None:
        check_positive(max_latency, "max_latency")
    if max_clean_rejection is not None and not 0 <= max_clean_rejection <= 1:
        raise ValueError(
            f"max_clean_rejection: expected a share from 0 to 1, got {max_clean_rejection}"
        )
    if not isinstance(model, SelectiveClassifier):
        model = SelectiveClassifier(model, AcceptAll())
    full, first = find_budget(budget), find_budget(screening)
    around = threat(norm or model.rule.norm or "Linf").name
    others = _read(model, x, y)
    if validation is None:
        images, labels = others
        if len(images) < 2:
            raise ValueError("x: expected at least two images, to choose on one half, got one")
        choosing, others = (images[::2], labels[::2]), (images[1::2], labels[1::2])
    else:
        choosing = _read(model, *validation)
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
    every = []
    for each in map(model.with_rule, candidates):
        rejected = float((~answers(each, seen).accepted).double().mean())
        every.append(Candidate(model=each, clean_rejection=rejected, latency=latency(each, seen)))
    allowed = [c for c in every if _within(c, max_latency, max_clean_rejection)]
    if not allowed:
        raise ValueError(
            f"none of {len(every)} candidates is within max_latency and max_clean_rejection; the "
            f"quickest takes {1000 * min(c.latency for c in every):.3g} ms, the least clean "
            f"rejection is {min(c.clean_rejection for c in every):.2%}"
        )
    run: dict[str, Any] = {"seed": seed, "norm": around, "store": store}
    run |= {"batch_size": batch_size, "block_size": block_size}
    search = _Search(allowed, eps, loss, full, run, progress or (lambda _: None))
    search.report(search.choose(choosing, first), others)
    ranked = sorted(every, key=lambda c: (STATUSES.index(c.status), search.bound(c), c.passes))
    return Advice(
        candidates=tuple(ranked),
        cost=loss,
        eps=eps,
        norm=around,
        budget=full.name,
        images=(len(seen), len(others[0])),
        notes=tuple(notes),
    )


def _read(model: SelectiveClassifier, x: Any, y: Tensor | None) -> Images:
    """Images and labels, checked, on the model's device."""
    if not isinstance(x, Tensor):
        x, y = gather(x, y)
    source = source_of(x, y, None)
    images = source.block(range(len(source)), *place_of(model, source))
    return images.x, images.y


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
    eps: float
    cost: RejectionLoss
    budget: Budget
    settings: dict[str, Any]  # of every evaluation
    tell: Tell

    def bound(self, candidate: Candidate) -> float:
        """What a candidate loses at least."""
        curve = candidate.curve
        return float("inf") if curve is None else curve.total_robust_loss(self.cost)

    def curves(self) -> list[RobustnessCurve]:
        """Those of candidates that were screened."""
        return [each.curve for each in self.candidates if each.curve is not None]

    def running(self) -> list[Candidate]:
        """Those whose bound is no more than chance above the leader's loss."""
        losses = [curve.image_losses(self.cost) for curve in self.curves()]
        pairs = list(zip(self.candidates, losses, strict=True))
        _, least = min(pairs, key=lambda pair: (self.bound(pair[0]), pair[0].passes))
        return [each for each, loss in pairs if paired(loss, least).sign <= 0]

    def choose(self, images: Images, screening: Budget) -> list[Candidate]:
        """Screen all candidates, then give the full budget to those that can still win."""
        count = len(self.candidates)
        for number, each in enumerate(self.candidates, 1):
            self.tell(f"screening {number} of {count}: {each.rule.describe()}")
            each.curve = self.attack(each, images, screening)
        screened = self.curves()
        for each in self.candidates:
            each.curve = self.attack(each, images, _ONLY_POINTS, each.curve, screened)
        while waiting := [each for each in self.running() if not each.full]:
            picked = min(waiting, key=self.bound)
            self.tell(f"full budget, {len(waiting)} may still win: {picked.rule.describe()}")
            found = self.attack(picked, images, self.budget, picked.curve, self.curves())
            picked.curve, picked.full = found, True
            for each in self.running():
                each.curve = self.attack(each, images, _ONLY_POINTS, each.curve, [found])
        finalists = self.running()
        for each in finalists:
            each.status = TIED
        min(finalists, key=lambda c: (c.passes, self.bound(c))).status = ADVISED
        return finalists

    def report(self, finalists: list[Candidate], images: Images) -> None:
        """Measure the finalists, and the plain network, on images that chose nothing."""
        plain = [c for c in self.candidates if not c.rule.can_reject]
        shown = list(dict.fromkeys([*finalists, *plain]))
        found: list[RobustnessCurve] = []
        for each in shown:
            self.tell(f"on the other images: {each.rule.describe()}")
            found.append(self.attack(each, images, self.budget, None, found))
        for each, curve in zip(shown, found, strict=True):
            each.reported = self.attack(each, images, _ONLY_POINTS, curve, found)

    def attack(
        self,
        candidate: Candidate,
        images: Images,
        budget: Budget,
        known: RobustnessCurve | None = None,
        curves: Sequence[RobustnessCurve] = (),
    ) -> RobustnessCurve:
        """Continue a known curve: what others' curves can add to it is judged, then it attacks."""
        parts = [useful_points(curve, known) for curve in curves if curve is not known]
        if known is not None:
            if budget is _ONLY_POINTS and not any(len(index) for index, _ in parts):
                return known
            parts.append(useful_points(known))
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        given = (columns[0], columns[1]) if columns and len(columns[0]) else None
        options = {"budget": budget, "points": given, **self.settings}
        found = robustness_curve(candidate.model, *images, self.eps, **options)
        if known is None:
            return found
        searched = known if budget is _ONLY_POINTS else found
        passes = (*known.passes, *found.passes)
        return replace(found, passes=passes, settings=searched.settings)
