"""Is the evaluation itself believable? Checks that would show a broken or too weak attack."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cpr_wrap.attacks.adaptive import KNOWN, Attack
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack
from cpr_wrap.attacks.ensemble import Standard
from cpr_wrap.diagnose import input_gradient_report
from cpr_wrap.evaluation.block import Block, Origin, rank_targets
from cpr_wrap.evaluation.engine import run_stage
from cpr_wrap.evaluation.planted import plant
from cpr_wrap.evaluation.verify import verify_curve
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier

# An audit is not meant to cost more than the evaluation.
_FEW = 8
_QUERIES = 300
_NOT_CONVERGED = 0.05
_WANTED = 0.95
_CLAMPED = 0.2
_BY_CHANCE = 0.5
_SHRUNK = 0.1


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question about an evaluation.

    Attributes:
        name: The question as a statement.
        passed: Whether it holds; None if it could not be asked.
        detail: What was measured.
    """

    name: str
    passed: bool | None
    detail: str


def audit(
    model: SelectiveClassifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    curve: RobustnessCurve,
    *,
    seed: int = 0,
    images: int = _FEW,
    black_box_images: int = 30,
) -> list[Check]:
    """Ask whether a curve can be believed.

    Args:
        model: The selective classifier.
        x: The images of the curve `(N, ...)`.
        y: Their classes `(N,)`.
        eps: The budget of the curve.
        curve: The curve.
        seed: Of random starts.
        images: How many images the searches of the audit use.
        black_box_images: How many images the black-box attack uses.
    """
    x, y = _at_home(model, x, y)
    everyone = _Few(model, x, y, torch.arange(len(x)), eps, curve, seed)
    first = everyone.take(everyone.rows[:images])
    broken = curve.records.outer_broken
    left, gone = (~broken).nonzero().flatten(), broken.nonzero().flatten()
    return [
        _recorded_points_hold(model, curve),
        *_more_effort(everyone.take(torch.cat([left[:images], gone[:images]]))),
        _smaller_radii(first),
        _everything_breaks(first),
        _gradients(model, first.x),
        _black_box(everyone.take(left[:black_box_images])),
        _planted(first),
    ]


def _at_home(model: SelectiveClassifier, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    parameter = next(model.base.parameters(), None)
    if parameter is None:
        return x, y
    return x.to(parameter.device, parameter.dtype), y.to(parameter.device)


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
        return 1.0 if self.norm == "Linf" else math.sqrt(self.x[0].numel())

    def take(self, rows: Tensor) -> _Few:
        """Some of the images, by their rows in the curve."""
        here = rows.to(self.x.device)
        return replace(self, x=self.x[here], y=self.y[here], rows=rows)

    def known(self, field: str) -> Tensor:
        """What the curve's records say of the images `(M,)`."""
        values: Tensor = getattr(self.curve.records, field)[self.rows]
        return values.to(self.x.device)

    def block(self, eps: float | None = None) -> Block:
        index = torch.arange(len(self.x), device=self.x.device)
        block = Block(
            self.model,
            self.x,
            self.y,
            index,
            eps=eps or self.eps,
            norm=self.norm,
            batch_size=128,
        )
        block.judge_clean()
        rank_targets(block, 9)
        return block

    def strongest(self) -> Attack:
        """The rule's strongest outer attack, as `standard` runs it in the end."""
        wanted = self.model.rule.outer[-1].name
        stages = Standard().stages(self.model.rule, self.eps)
        return [s for s in stages if isinstance(s, Attack) and s.objective.name == wanted][-1]


def _broken(block: Block) -> Tensor:
    return block.found[Goal.ACCEPTED_MISTAKE].known


def _recorded_points_hold(model: SelectiveClassifier, curve: RobustnessCurve) -> Check:
    name = "every recorded adversarial input does what is recorded"
    if not curve.details.get("points"):
        return Check(name=name, passed=None, detail="the result carries no points")
    answer = verify_curve(model, curve)
    detail = f"{answer.checked} points asked about again from scratch"
    if answer.problems:
        detail += f"; {len(answer.problems)} do not hold, first: {answer.problems[0]}"
    return Check(name=name, passed=answer.holds, detail=detail)


def _more_effort(few: _Few) -> list[Check]:
    """More iterations, restarts or radius, added to what was found, must not find less."""
    attack = few.strongest()
    hardly = "no fewer errors, and hardly more"
    longer = replace(attack, iterations=3 * attack.iterations)
    wider = min(few.whole, 1.25 * few.eps)
    return [
        _no_worse(few, f"three times the iterations: {hardly}", longer),
        _no_worse(few, f"three more random starts: {hardly}", replace(attack, starts=(11, 12, 13))),
        _no_worse(few, "a larger eps (by a quarter): no fewer errors", attack, wider),
    ]


def _no_worse(few: _Few, name: str, stage: Attack, wider: float | None = None) -> Check:
    known = few.known("outer_broken")
    if bool(known.any()) and not few.curve.details.get("points"):
        return Check(name=name, passed=None, detail="the result carries no points to begin with")
    block = few.block(wider)
    _carry(block, few, known, Goal.ACCEPTED_MISTAKE)
    run_stage(block, stage, few.seed)
    broken = _broken(block)
    lost, gained = int((known & ~broken).sum()), int((broken & ~known).sum())
    left = int((~known).sum())
    detail = f"of {left} images without an accepted mistake {gained} got one"
    if lost:
        detail += f"; {lost} of {int(known.sum())} known ones do not hold"
    elif left == 0 and wider is None:
        return Check(name=name, passed=None, detail="every image was broken already")
    converged = wider is not None or gained <= _NOT_CONVERGED * left
    if not converged:
        detail += "; the budget was too small, use a larger one"
    return Check(name=name, passed=lost == 0 and converged, detail=detail)


def _smaller_radii(few: _Few) -> Check:
    """More effort of the inner attacks must not bring rejections much closer to the images."""
    name = "twice the iterations and rounds of inner attacks: rejected inputs hardly closer"
    rule = few.model.rule
    before = few.known("rejected_radius").to(few.x)
    # Where a mistake was accepted, nobody looked further for rejections.
    rows = before.isfinite() & (before > 0) & ~few.known("outer_broken")
    if not rule.can_reject or not few.curve.details.get("points") or not bool(rows.any()):
        return Check(name=name, passed=None, detail="no rejected inputs to begin with")
    block = few.block()
    _carry(block, few, rows, Goal.REJECTED)
    for stage in Standard().stages(rule, few.eps):
        if isinstance(stage, Attack) and stage.goal is Goal.REJECTED and KNOWN in stage.starts:
            twice = replace(stage, iterations=2 * stage.iterations, rounds=2 * stage.rounds)
            run_stage(block, twice, few.seed)
    after = block.found[Goal.REJECTED].distance[rows]
    if not bool(after.isfinite().all()):
        return Check(name=name, passed=False, detail="a recorded input is not rejected any more")
    closer = float((1 - after / before[rows]).double().mean())
    return Check(
        name=name,
        passed=closer <= _SHRUNK,
        detail=f"closer by {max(0.0, closer):.1%} on average over {int(rows.sum())} images",
    )


def _carry(block: Block, few: _Few, known: Tensor, goal: Goal) -> None:
    """Bring points that the curve holds for a goal into a block, judged again on the way."""
    points = few.curve.details.get("points")
    rows = known.nonzero().flatten()
    if points and len(rows):
        kind = "outer" if goal is Goal.ACCEPTED_MISTAKE else "rejected"
        carried = points[kind][few.rows].to(block.x)[rows]
        block.consider(rows, carried, goal, block.eps, Origin(attack="carried over"))


def _everything_breaks(few: _Few) -> Check:
    block = few.block(few.whole)
    for stage in (few.strongest(), *_wide(few)):
        run_stage(block, stage, few.seed)
    share = float(_broken(block).double().mean())
    return Check(
        name=f"at eps = {few.whole:g} the outer attack breaks everything",
        passed=share == 1.0,
        detail=f"{share:.0%} of {len(few.x)} images",
    )


def _wide(few: _Few) -> list[Attack]:
    """All outer attacks from other starts, for a ball that is the whole input space."""
    rule = few.model.rule
    return [
        replace(few.strongest(), objective=objective, iterations=40, starts=(21, 22, 23))
        for objective in rule.outer
    ]


def _gradients(model: SelectiveClassifier, x: Tensor) -> Check:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of is in the check
        report = input_gradient_report(model, x)
    # Pixels without a gradient may simply not be used. A clamp shows where nudging a pixel off
    # its bound brings the gradient back; an image without any gradient stops every attack.
    clamped = report.zero_on_bound - report.zero_after_nudge
    return Check(
        name="the network's input gradients are there to be used",
        passed=report.flat_images == 0 and clamped < _CLAMPED,
        detail=(
            f"{report.zero:.1%} of pixels have a gradient of exactly zero, {report.flat_images} of "
            f"{report.num_images} images have no gradient at all, and {max(0.0, clamped):.1%} of "
            "pixels on a bound get one when nudged off it"
        ),
    )


def _black_box(left: _Few) -> Check:
    """Square on images that the ensemble did not break."""
    name = "a black-box attack breaks nothing that the ensemble did not"
    if not len(left.x):
        return Check(name=name, passed=None, detail="every image was broken already")
    square = AdaptiveAutoAttack(components=("square",), n_queries=_QUERIES)
    block = left.block()
    plan = square.plan(len(block.order[0]) + 1, tuple(left.x.shape[1:]), left.norm)
    if not plan.components:
        return Check(name=name, passed=None, detail="; ".join(plan.notes))
    run_stage(block, square, left.seed)
    new = int(_broken(block).sum())
    detail = (
        f"Square ({_QUERIES} queries) breaks {new} of {len(left.x)} images that the ensemble did "
        "not break"
    )
    return Check(name=name, passed=new == 0, detail=detail)


def _planted(few: _Few) -> Check:
    found = plant(few.model, few.x, few.y, few.eps, norm=few.norm, seed=few.seed)
    name = "adversarial inputs that were planted are found"
    if found.planted == 0:
        return Check(name=name, passed=None, detail="none could be planted")
    share = found.found / found.planted
    detail = f"{found.found} of {found.planted} planted ones ({share:.0%}), "
    detail += f"{found.by_chance} of them by random points too"
    if share >= _WANTED and found.by_chance > _BY_CHANCE * found.planted:
        return Check(name=name, passed=None, detail=f"{detail}: too easy to tell")
    return Check(name=name, passed=share >= _WANTED, detail=detail)


def as_rows(checks: list[Check]) -> list[dict[str, Any]]:
    """Checks as plain data, as result folders hold them."""
    return [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in checks]
