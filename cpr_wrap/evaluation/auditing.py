"""Can an evaluation be trusted? Checks that reveal broken or weak attacks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpr_wrap.attacks.adaptive import KNOWN, Attack, Stage
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack
from cpr_wrap.attacks.donors import Donors
from cpr_wrap.attacks.ensemble import unused_restarts
from cpr_wrap.attacks.pasting import PastedPatches
from cpr_wrap.bounds import UnsupportedLayerError
from cpr_wrap.diagnose import input_gradient_report
from cpr_wrap.engine.block import Block, rank_targets
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.evaluation.donating import known_donors
from cpr_wrap.evaluation.planted import plant
from cpr_wrap.evaluation.verify import verify_curve
from cpr_wrap.geometry import threat
from cpr_wrap.meter import count_passes
from cpr_wrap.metrics import Check, Origin, RobustnessCurve
from cpr_wrap.metrics.intervals import richness
from cpr_wrap.objective import Goal, margin
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

    Example:
        >>> from cpr_wrap import load, load_data, robustness_curve
        >>> model, data = load("bundled:mnist-compact-at"), load_data("mnist", num=20)
        >>> curve = robustness_curve(model, data.images, data.labels, 0.3)  # doctest: +SKIP
        >>> for check in audit(model, curve):  # doctest: +SKIP
        ...     print(check.passed, check.name, check.detail)
    """
    if curve.points is None:
        raise ValueError("expected a curve with its points, got one without")
    device = network_device(model.base)
    x, y = curve.points.clean.to(device), curve.records.label.to(device)
    everyone = _Few(model, x, y, torch.arange(len(x)), curve.eps, curve, seed)
    first = everyone.take(everyone.rows[:num])
    left = everyone.take((~curve.records.outer_broken).nonzero().flatten())
    fresh = _fresh_donors(model, x, y)
    return (
        _recorded_points_hold(model, curve),
        _nothing_new(left.first(num), _RESTARTS, unused_restarts(model.rule), fresh),
        _nothing_new(left.first(num), _PATCHES, [PastedPatches(fresh)], fresh),
        _black_box(left.first(black_box_num)),
        _larger_eps(first),
        _smaller_radii(first, fresh),
        _everything_breaks(first, fresh),
        _gradients(model, first.x, curve),
        _planted(first),
        _still_to_find(everyone.take(_spread_out(len(x), 2 * num)), fresh),
    )


_RESTARTS = "restarts with other donors, starts and smoothing than the run's break nothing more"
_PATCHES = "a search without gradients, by pasting other images, breaks nothing more"


def _fresh_donors(model: SelectiveClassifier, x: Tensor, y: Tensor) -> Donors:
    """Donors that no evaluation uses by default, or else the evaluated images themselves."""
    known = known_donors(model, x.shape[1:], int(_classes(model, x)), unused=True)
    return known or Donors(x.detach().cpu().float(), y.cpu(), "evaluated images")


def _classes(model: SelectiveClassifier, x: Tensor) -> int:
    with torch.no_grad():
        return model.logits(x[:1]).shape[1]


def _spread_out(count: int, wanted: int) -> Tensor:
    """About this many rows, evenly spread."""
    return torch.arange(0, count, max(1, count // wanted))[:wanted]


@dataclass(frozen=True)
class _Few:
    """Some images of a curve to try things on.

    Attributes:
        model: The selective classifier.
        x: The images `(M, ...)`.
        y: Their classes `(M,)`.
        rows: Which rows of the curve they are `(M,)`, on the CPU.
        eps: The budget.
        curve: The curve.
        seed: Of random starts.
    """

    model: SelectiveClassifier
    x: Tensor
    y: Tensor
    rows: Tensor
    eps: float
    curve: RobustnessCurve
    seed: int

    @property
    def norm(self) -> str:
        return self.curve.records.norm

    @property
    def whole(self) -> float:
        """The radius of a ball that holds every image, whatever its centre."""
        return threat(self.norm).everything(self.x)

    def first(self, count: int) -> _Few:
        """The first of the images."""
        return self.take(self.rows[:count])

    def take(self, rows: Tensor) -> _Few:
        """Some of the images, by their rows in the curve."""
        place = {row: here for here, row in enumerate(self.rows.tolist())}
        here = torch.tensor([place[row] for row in rows.tolist()], dtype=torch.int64)
        here = here.to(self.x.device)
        return replace(self, x=self.x[here], y=self.y[here], rows=rows)

    def known(self, field: str) -> Tensor:
        """What the curve's records say of the images `(M,)`."""
        values: Tensor = getattr(self.curve.records, field)[self.rows]
        return values.to(self.x.device)

    def block(self, eps: float | None = None, donors: Donors | None = None) -> Block:
        index = self.curve.records.index[self.rows].to(self.x.device)
        block = Block(
            self.model,
            self.x,
            self.y,
            index,
            eps=eps or self.eps,
            norm=self.norm,
            batch_size=128,
            donors=None if donors is None else donors.to(self.x),
        )
        block.judge_clean()
        rank_targets(block, 9)
        return block


def _broken(block: Block) -> Tensor:
    return block.found[Goal.ACCEPTED_MISTAKE].known


def _recorded_points_hold(model: SelectiveClassifier, curve: RobustnessCurve) -> Check:
    name = "every recorded adversarial input is confirmed"
    answer = verify_curve(model, curve)
    detail = f"{answer.checked} points judged again from scratch"
    if answer.problems:
        detail += f"; {len(answer.problems)} do not hold, first: {answer.problems[0]}"
    return Check(name=name, passed=answer.holds, detail=detail)


def _nothing_new(left: _Few, name: str, stages: Iterable[Stage], donors: Donors) -> Check:
    """Search by means of the audit's own for mistakes on images that the run left."""
    if not len(left.x):
        return Check(name=name, passed=None, detail="every image was already broken")
    block = left.block(donors=donors)
    with count_passes() as passes:
        for stage in stages:
            run_stage(block, stage, left.seed + _OTHER_SEED)
    return _judged(name, int(_broken(block).sum()), len(left.x), passes.total)


def _judged(name: str, new: int, images: int, passes: int) -> Check:
    detail = f"breaks {new} of {images} images that were left, {passes / images:,.0f} passes each"
    if new > _TOLERATED * images:
        detail += "; the search was too short, use a larger budget"
    return Check(name=name, passed=new <= _TOLERATED * images, detail=detail)


def _larger_eps(few: _Few) -> Check:
    """Points found at eps are mistakes at a larger eps, too."""
    name = "a larger eps (by a quarter) gives no fewer errors"
    known = few.known("outer_broken")
    block = few.block(min(few.whole, 1.25 * few.eps))
    _carry(block, few, known, Goal.ACCEPTED_MISTAKE)
    lost = int((known & ~_broken(block)).sum())
    detail = f"{int(known.sum()) - lost} of {int(known.sum())} known mistakes hold"
    return Check(name=name, passed=lost == 0, detail=detail)


def _smaller_radii(few: _Few, donors: Donors | None = None) -> Check:
    """More effort of the inner attacks must not bring rejections much closer to the images."""
    name = "longer inner attacks with smoothed gradients find hardly closer rejected inputs"
    rule = few.model.rule
    before = few.known("rejected_radius").to(few.x)
    # Where a mistake was accepted, nobody looked further for rejections.
    rows = before.isfinite() & (before > 0) & ~few.known("outer_broken")
    if not rule.can_reject or not bool(rows.any()):
        return Check(name=name, passed=None, detail="no rejected inputs to start from")
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
        return Check(name=name, passed=False, detail="a recorded input is no longer rejected")
    closer = float((1 - after / before[rows]).double().mean())
    return Check(
        name=name,
        passed=closer <= _SHRUNK,
        detail=f"closer by {max(0.0, closer):.1%} on average over {int(rows.sum())} images",
    )


def _carry(block: Block, few: _Few, known: Tensor, goal: Goal) -> None:
    """Bring points that the curve holds for a goal into a block, judged again on the way."""
    points = few.curve.points
    rows = known.nonzero().flatten()
    if points is not None and len(rows):
        held = points.outer if goal is Goal.ACCEPTED_MISTAKE else points.rejected
        carried = held[few.rows].to(block.x)[rows]
        block.consider(rows, carried, goal, block.eps, Origin(attack="carried over"))


def _everything_breaks(few: _Few, donors: Donors | None = None) -> Check:
    block = few.block(few.whole, donors)
    for stage in unused_restarts(few.model.rule):
        run_stage(block, stage, few.seed)
    share = float(_broken(block).double().mean())
    return Check(
        name=f"at eps = {few.whole:g} the outer attack breaks everything",
        passed=share == 1.0,
        detail=f"{share:.0%} of {len(few.x)} images",
    )


def _gradients(model: SelectiveClassifier, x: Tensor, curve: RobustnessCurve) -> Check:
    """Gradients that are not there must have been smoothed, or looked for by other means."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of is in the check
        report = input_gradient_report(model, x)
    stages = () if curve.settings is None else curve.settings.stages
    # Only searches for mistakes on all images count: those are what the figure at alpha 0 rests on.
    outer = [s for s in stages if Goal.ACCEPTED_MISTAKE.name in s and "sample=1.0" in s]
    done = any("'smoothed'" in stage or "'alternating'" in stage for stage in outer)
    notes = () if curve.provenance is None else curve.provenance.notes
    done = done and not any("could not be smoothed" in note for note in notes)
    detail = (
        f"{report.zero:.1%} of pixels have a gradient of exactly zero, and {report.flat_images} of "
        f"{report.num_images} images have no gradient at all; the run "
        + ("smoothed gradients" if done else "did not smooth gradients")
    )
    masked = report.zero >= _MASKED and not done
    blind = _blind(model, x) if done else report.flat_images
    if blind:
        detail += f"; {blind} images have none even then, and no gradient attack can work there"
    return Check(
        name="gradients exist, or were smoothed",
        passed=blind == 0 and not masked,
        detail=detail,
    )


def _blind(model: SelectiveClassifier, x: Tensor) -> int:
    """Images whose smoothed gradient is zero at every pixel."""
    with torch.enable_grad(), smoothed():
        point = x.detach().requires_grad_()
        logits = model.logits(point)
        lead = margin(logits, logits.detach().argmax(dim=1)).sum()
    (gradient,) = torch.autograd.grad(lead, point)
    return int((gradient == 0).flatten(1).all(dim=1).sum())


def _black_box(left: _Few) -> Check:
    """Square on images that the ensemble did not break."""
    name = "a black-box attack breaks nothing more"
    if not len(left.x):
        return Check(name=name, passed=None, detail="every image was already broken")
    square = AdaptiveAutoAttack(components=("square",), n_queries=_QUERIES)
    block = left.block()
    plan = square.plan(len(block.order[0]) + 1, tuple(left.x.shape[1:]), left.norm)
    if not plan.components:
        return Check(name=name, passed=None, detail="; ".join(plan.notes))
    with count_passes() as passes:
        run_stage(block, square, left.seed)
    return _judged(name, int(_broken(block).sum()), len(left.x), passes.total)


def _planted(few: _Few) -> Check:
    name = "planted adversarial inputs are found"
    try:
        found = plant(few.model, few.x, few.y, few.eps, norm=few.norm, seed=few.seed)
    except UnsupportedLayerError:  # a rule that bounds layers cannot bound the planted network
        return Check(name=name, passed=None, detail="none could be planted for this rule")
    if found.planted == 0:
        return Check(name=name, passed=None, detail="none could be planted")
    share = found.found / found.planted
    detail = f"{found.found} of {found.planted} planted ones ({share:.0%}), "
    detail += f"{found.by_chance} of them by random points too"
    if share >= _WANTED and found.by_chance > _BY_CHANCE * found.planted:
        return Check(name=name, passed=None, detail=f"{detail}: too easy to be a test")
    return Check(name=name, passed=share >= _WANTED, detail=detail)


def _still_to_find(few: _Few, donors: Donors) -> Check:
    """An estimate of what more rounds like the audit's would break; it judges nothing."""
    found = []
    for number in range(_ROUNDS):
        block = few.block(donors=donors)
        for stage in unused_restarts(few.model.rule, number)[:1]:
            run_stage(block, stage, few.seed + _OTHER_SEED * (number + 2))
        found.append(_broken(block))
    seen = richness(torch.stack(found).cpu())
    low, high = seen.more
    detail = (
        f"{_ROUNDS} rounds break {seen.broken} of {seen.images} images; more of these attacks "
        f"would break about {low} to {high} more. A stronger attack may break more than that"
    )
    return Check(name="how much is left to find", passed=None, detail=detail)
