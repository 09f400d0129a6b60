"""Can an evaluation be trusted? Checks that reveal broken or weak attacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from cpr_wrap.attacks.adaptive import KNOWN, Attack, Stage
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack
from cpr_wrap.attacks.donors import Donors, PastedPatches
from cpr_wrap.attacks.ensemble import unused_restarts
from cpr_wrap.bounds import UnsupportedLayerError
from cpr_wrap.engine.block import Block, rank_targets
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.evaluation.planted import plant
from cpr_wrap.evaluation.preflight import gradient_report, num_classes
from cpr_wrap.evaluation.supplied import known_donors
from cpr_wrap.evaluation.verify import verify_curve
from cpr_wrap.geometry import threat
from cpr_wrap.meter import count_passes
from cpr_wrap.metrics import Check, Origin, RobustnessCurve
from cpr_wrap.metrics.intervals import richness
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier, network_device
from cpr_wrap.smoothing import smoothed

# An audit is not meant to cost more than the evaluation.
_FEW = 8
_QUERIES = 300
_TOLERATED = 0.02  # share of the images left that a check may break
_WANTED = 0.95
_MASKED = 0.2  # share of zero gradients that calls for smoothing
_BY_CHANCE = 0.5
_SHRUNK = 0.1
_ROUNDS = 4
_OTHER_SEED = 1_000_003


def audit(
    model: SelectiveClassifier,
    curve: RobustnessCurve,
    *,
    seed: int = 0,
    num: int = _FEW,
    black_box_num: int = 30,
) -> tuple[Check, ...]:
    """Check whether the evaluation behind a curve was strong enough.

    Args:
        model: The selective classifier.
        curve: Its curve, with points.
        seed: Seed of random starts.
        num: Number of images for the searches of the audit.
        black_box_num: Number of images for the black-box attack.

    Returns:
        The checks; a failed one says that the curve overstates robustness, or may.

    Example:
        >>> from cpr_wrap import load, load_data, robustness_curve
        >>> model, data = load("bundled:mnist-compact-at"), load_data("mnist", num=20)
        >>> curve = robustness_curve(model, data.images, data.labels, 0.3)  # doctest: +SKIP
        >>> for check in audit(model, curve):  # doctest: +SKIP
        ...     print(check.passed, check.name, check.detail)
    """
    if curve.points is None:
        raise ValueError("expected a curve with its points, got one without")
    everyone = _Few(model, curve, torch.arange(len(curve.records)), seed)
    first, fresh = everyone.first(num), _fresh_donors(everyone)
    left = everyone.take(~curve.records.outer_broken)
    spread = everyone.take(slice(None, None, max(1, len(everyone.rows) // (2 * num))))
    everything = f"at eps = {first.whole:g} the outer attack breaks everything"
    outcomes = {
        "every recorded adversarial input is confirmed": _recorded_points_hold(model, curve),
        _RESTARTS: _nothing_new(left.first(num), unused_restarts(model.rule), fresh),
        _PATCHES: _nothing_new(left.first(num), [PastedPatches(fresh)], fresh),
        "a black-box attack breaks nothing more": _black_box(left.first(black_box_num)),
        "a larger eps (by a quarter) gives no fewer errors": _larger_eps(first),
        _INNER: _smaller_radii(first, fresh),
        everything: _everything_breaks(first, fresh),
        "gradients exist, or were smoothed": _gradients(first),
        "planted adversarial inputs are found": _planted(first),
        "how much is left to find": _still_to_find(spread.first(2 * num), fresh),
    }
    return tuple(Check(name=name, passed=out[0], detail=out[1]) for name, out in outcomes.items())


_RESTARTS = "restarts with other donors, starts and smoothing than the run's break nothing more"
_PATCHES = "a search without gradients, by pasting other images, breaks nothing more"
_INNER = "longer inner attacks with smoothed gradients find hardly closer rejected inputs"

_Outcome = tuple[bool | None, str]
"""Whether a check holds, None where it could not be made, and what was measured."""


@dataclass(frozen=True)
class _Few:
    """Some images of a curve to try things on, by their rows `(M,)` in it, on the CPU."""

    model: SelectiveClassifier
    curve: RobustnessCurve
    rows: Tensor
    seed: int

    @cached_property
    def x(self) -> Tensor:
        """The images `(M, ...)`, on the model's device."""
        assert self.curve.points is not None
        return self.curve.points.clean[self.rows].to(network_device(self.model.base))

    @property
    def norm(self) -> str:
        return self.curve.records.norm

    @property
    def whole(self) -> float:
        """The radius of a ball that holds every image, whatever its center."""
        return threat(self.norm).everything(self.x)

    def first(self, count: int) -> _Few:
        """The first of the images."""
        return self.take(slice(count))

    def take(self, places: slice | Tensor) -> _Few:
        """Some of the images, by their places among these."""
        return replace(self, rows=self.rows[places])

    def known(self, field: str) -> Tensor:
        """What the curve's records say of the images `(M,)`."""
        values: Tensor = getattr(self.curve.records, field)[self.rows]
        return values.to(self.x.device)

    def block(self, eps: float | None = None, donors: Donors | None = None) -> Block:
        """The images, judged, in a ball of their own or of the curve's radius."""
        block = Block(
            self.model,
            self.x,
            self.known("label"),
            self.known("index"),
            eps=eps or self.curve.eps,
            norm=self.norm,
            batch_size=128,
            donors=None if donors is None else donors.to(self.x),
        )
        block.judge_clean()
        rank_targets(block, 9)
        return block


def _fresh_donors(few: _Few) -> Donors:
    """Donors that no evaluation uses by default, or else the evaluated images themselves."""
    classes = num_classes(few.model, few.x)
    known = known_donors(few.model, few.x.shape[1:], classes, unused=True)
    return known or Donors(
        few.x.cpu().float(), few.curve.records.label[few.rows], "evaluated images"
    )


def _broken(block: Block) -> Tensor:
    return block.found[Goal.ACCEPTED_MISTAKE].known


def _recorded_points_hold(model: SelectiveClassifier, curve: RobustnessCurve) -> _Outcome:
    answer = verify_curve(model, curve)
    detail = f"{answer.checked} points judged again from scratch"
    if answer.problems:
        detail += f"; {len(answer.problems)} do not hold, first: {answer.problems[0]}"
    return answer.holds, detail


def _nothing_new(
    left: _Few, stages: Iterable[Stage], donors: Donors | None = None, seed: int = _OTHER_SEED
) -> _Outcome:
    """Search by means of the audit's own for mistakes on images that the run left."""
    if not len(left.rows):
        return None, "every image was already broken"
    block = left.block(donors=donors)
    with count_passes() as passes:
        for stage in stages:
            run_stage(block, stage, left.seed + seed)
    new, images = int(_broken(block).sum()), len(block)
    each = passes.total / images
    detail = f"breaks {new} of {images} images that were left, {each:,.0f} passes each"
    if new > _TOLERATED * images:
        detail += "; the search was too short, use a larger budget"
    return new <= _TOLERATED * images, detail


def _black_box(left: _Few) -> _Outcome:
    """Square on images that the ensemble did not break."""
    square = AdaptiveAutoAttack(components=("square",), n_queries=_QUERIES)
    plan = square.plan(2, tuple(left.x.shape[1:]), left.norm)  # two classes are enough for it
    if not plan.components:
        return None, "; ".join(plan.notes)
    return _nothing_new(left, [square], seed=0)


def _larger_eps(few: _Few) -> _Outcome:
    """Points found at eps are mistakes at a larger eps, too."""
    known = few.known("outer_broken")
    block = few.block(min(few.whole, 1.25 * few.curve.eps))
    _carry(block, few, known, Goal.ACCEPTED_MISTAKE)
    lost = int((known & ~_broken(block)).sum())
    return lost == 0, f"{int(known.sum()) - lost} of {int(known.sum())} known mistakes hold"


def _smaller_radii(few: _Few, donors: Donors | None = None) -> _Outcome:
    """More effort of the inner attacks must not bring rejections much closer to the images."""
    rule = few.model.rule
    before = few.known("rejected_radius").to(few.x)
    # Where a mistake was accepted, nobody looked further for rejections.
    rows = before.isfinite() & (before > 0) & ~few.known("outer_broken")
    if not rule.can_reject or not bool(rows.any()):
        return None, "no rejected inputs to start from"
    block = few.block(donors=donors)
    _carry(block, few, rows, Goal.REJECTED)
    for objective in rule.inner:
        stage = Attack(
            objective=objective,
            goal=Goal.REJECTED,
            steps=20,
            step=0.2,
            shrink=0.2,
            starts=(KNOWN,),
            targets=2,
            rounds=6,
            stride=0.05,
            gradient="smoothed",
            tag="-audit",
        )
        run_stage(block, stage, few.seed + _OTHER_SEED)
    after = block.found[Goal.REJECTED].distance[rows]
    if not bool(after.isfinite().all()):
        return False, "a recorded input is no longer rejected"
    closer = float((1 - after / before[rows]).double().mean())
    detail = f"closer by {max(0.0, closer):.1%} on average over {int(rows.sum())} images"
    return closer <= _SHRUNK, detail


def _carry(block: Block, few: _Few, known: Tensor, goal: Goal) -> None:
    """Bring points that the curve holds for a goal into a block, judged again on the way."""
    points = few.curve.points
    rows = known.nonzero().flatten()
    if points is not None and len(rows):
        held = points.outer if goal is Goal.ACCEPTED_MISTAKE else points.rejected
        carried = held[few.rows].to(block.x)[rows]
        block.consider(rows, carried, goal, block.eps, Origin(attack="carried over"))


def _everything_breaks(few: _Few, donors: Donors | None = None) -> _Outcome:
    block = few.block(few.whole, donors)
    for stage in unused_restarts(few.model.rule):
        run_stage(block, stage, few.seed)
    share = float(_broken(block).double().mean())
    return share == 1.0, f"{share:.0%} of {len(few.x)} images"


def _gradients(few: _Few) -> _Outcome:
    """Gradients that are not there must have been smoothed, or looked for by other means."""
    report = gradient_report(few.model, few.x)
    settings, provenance = few.curve.settings, few.curve.provenance
    # Only searches for mistakes on all images count: those are what the figure at alpha 0 rests on.
    outer = [
        stage
        for stage in (settings.stages if settings else ())
        if Goal.ACCEPTED_MISTAKE.name in stage and "sample=1.0" in stage
    ]
    done = any("'smoothed'" in stage or "'alternating'" in stage for stage in outer)
    notes = provenance.notes if provenance else ()
    done = done and not any("could not be smoothed" in note for note in notes)
    detail = (
        f"{report.zero:.1%} of pixels have a gradient of exactly zero, and {report.flat_images} of "
        f"{report.num_images} images have no gradient at all; the run "
        + ("smoothed gradients" if done else "did not smooth gradients")
    )
    masked, blind = report.zero >= _MASKED and not done, report.flat_images
    if done:
        with smoothed():
            blind = gradient_report(few.model, few.x).flat_images
    if blind:
        detail += f"; {blind} images have none even then, and no gradient attack can work there"
    return blind == 0 and not masked, detail


def _planted(few: _Few) -> _Outcome:
    eps, labels = few.curve.eps, few.known("label")
    try:
        found = plant(few.model, few.x, labels, eps, norm=few.norm, seed=few.seed)
    except UnsupportedLayerError:  # a rule that bounds layers cannot bound the planted network
        return None, "none could be planted for this rule"
    if found.planted == 0:
        return None, "none could be planted"
    share = found.found / found.planted
    detail = f"{found.found} of {found.planted} planted ones ({share:.0%}), "
    detail += f"{found.by_chance} of them by random points too"
    if share >= _WANTED and found.by_chance > _BY_CHANCE * found.planted:
        return None, f"{detail}: too easy to be a test"
    return share >= _WANTED, detail


def _still_to_find(few: _Few, donors: Donors) -> _Outcome:
    """An estimate of what more rounds like the audit's would break; it judges nothing."""
    found = []
    for number in range(_ROUNDS):
        block = few.block(donors=donors)
        for stage in unused_restarts(few.model.rule, number)[:1]:
            run_stage(block, stage, few.seed + _OTHER_SEED * (number + 2))
        found.append(_broken(block))
    seen = richness(torch.stack(found).cpu())
    low, high = seen.more
    return None, (
        f"{_ROUNDS} rounds break {seen.broken} of {len(found[0])} images; more of these attacks "
        f"would break about {low} to {high} more. A stronger attack may break more than that"
    )
