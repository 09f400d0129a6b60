"""An audit passes where an evaluation is honest, and each of its checks can fail."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from cpr_wrap import load, load_data
from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.attacks.donors import Donors, PastedPatches
from cpr_wrap.attacks.ensemble import Quick
from cpr_wrap.evaluation import audit, robustness_curve
from cpr_wrap.evaluation import auditing as AUDIT
from cpr_wrap.evaluation.planted import Planted, plant
from cpr_wrap.evaluation.planted import _search as search
from cpr_wrap.objective import Goal
from cpr_wrap.rules import AcceptAll, Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier
from examples.study.before import Before
from tests.evaluation.test_curve import make
from tests.evaluation.test_results import tampered
from tests.toys import Curved


@pytest.fixture(scope="module")
def evaluated():
    model, x, y = make("cpr")
    return model, x, y, robustness_curve(model, x, y, 0.1, budget="quick")


def few_of(model, curve):
    return AUDIT._Few(model, curve, torch.arange(len(curve.records)), 0)


class Nothing:
    """A budget without attacks."""

    name = "nothing"

    def stages(self, rule, eps):
        return ()


class Pixels(torch.nn.Module):
    """Class 1 where the mean pixel is above a bound."""

    def __init__(self, bound: float = 0.55) -> None:
        super().__init__()
        self.bound, self.training = bound, False

    def forward(self, x):
        lead = x.flatten(1).mean(dim=1) - self.bound
        return torch.stack([-lead, lead], dim=1)


class Steps(Pixels):
    """The same after pixels were rounded, so that nothing has a gradient."""

    def forward(self, x):
        return super().forward(x.detach().round() + 0 * x)


class Clamped(Pixels):
    """The same behind a first layer that most pixels do not pass."""

    def forward(self, x):
        return super().forward(torch.relu(x - 0.05))


def grey(count):
    return torch.full((count, 1, 8, 8), 0.5), torch.zeros(count, dtype=torch.int64)


@pytest.mark.integration
def test_an_audit_passes_on_an_honest_evaluation(standard):
    model, _, _, curve = standard
    checks = audit(model, curve, num=2, black_box_num=2)
    failed = [check for check in checks if check.passed is False]
    # Linf Square needs images of two axes and gets 2 x 2 pixels; the rest is the usual thing.
    assert not failed, failed
    assert len(checks) == 10
    assert "more of these attacks would break about" in checks[-1].detail
    assert checks[-1].passed is None


@dataclass(frozen=True)
class Given:
    """Proposes points that are known."""

    points: torch.Tensor
    name = "given"

    def perturb(self, model, x, y, eps, *, norm, seed, index):
        return self.points[index]


@pytest.mark.integration
def test_an_audit_fails_where_points_are_made_up_or_attacks_were_left_out(evaluated):
    model, x, y, curve = evaluated
    broken = (curve.records.outer_distance > 0) & curve.records.outer_broken
    row = int(broken.nonzero()[0])
    one = x.clone()
    one[row] = curve.points.outer[row]
    lazy = robustness_curve(model, x, y, 0.1, budget=Nothing(), extras=[Given(one)])
    assert lazy.records.outer_distance[row] > 0

    checks = audit(model, tampered(lazy, "outer", row, x[row]), num=2, black_box_num=1)
    assert checks[0].passed is False
    assert "do not hold" in checks[0].detail
    weak = [check for check in checks if "the search was too short" in check.detail]
    assert weak
    assert all(check.passed is False for check in weak)


@pytest.mark.integration
def test_an_audit_fails_where_inner_attacks_were_too_weak(standard):
    model, x, y, enough = standard

    class Far:
        name = "far"

        def stages(self, rule, eps):
            return (
                Attack(objective=rule.inner[0], goal=Goal.REJECTED, steps=20, step=1.0),
                *[s for s in Quick().stages(rule, eps) if "CHCMOA" in s.name],
            )

    weak = robustness_curve(model, x, y, 0.1, budget=Far())
    for curve, expected in ((enough, True), (weak, False)):
        passed, detail = AUDIT._smaller_radii(few_of(model, curve).first(5))
        assert passed is expected, detail
    radius = curve.records.rejected_radius
    row = int((radius.isfinite() & (radius > 0) & ~curve.records.outer_broken).nonzero()[0])
    made_up = few_of(model, tampered(curve, "rejected", row, x[row]))
    assert AUDIT._smaller_radii(made_up.take(torch.arange(len(x)) == row))[0] is False


def test_where_everything_is_broken_a_search_says_nothing():
    x, y = grey(2)
    model = SelectiveClassifier(Pixels(), AcceptAll())
    curve = robustness_curve(model, x, y, 0.1, budget="quick")
    assert curve.records.outer_broken.all()
    verdicts = {c.name: c for c in audit(model, curve, num=2)}
    for name in (AUDIT._RESTARTS, AUDIT._PATCHES):
        assert verdicts[name].passed is None
        assert verdicts[name].detail == "every image was already broken"
    assert AUDIT._larger_eps(few_of(model, curve))[0] is True
    made_up = few_of(model, tampered(curve, "outer", 1, x[1]))
    assert AUDIT._larger_eps(made_up) == (False, "1 of 2 known mistakes hold")


def test_what_a_run_could_not_see_is_found_by_other_means():
    """Gradients of nothing: only the search that pastes other images can break this network."""
    x = torch.cat([torch.full((3, 1, 8, 8), 0.5), torch.full((1, 1, 8, 8), 0.9)])
    y = torch.tensor([0, 0, 0, 1])
    model = SelectiveClassifier(Steps(0.5), AcceptAll())
    curve = robustness_curve(model, x, y, 0.3, budget=Nothing())
    donors = Donors(x, y)
    patches = [PastedPatches(donors)]
    passed, detail = AUDIT._nothing_new(few_of(model, curve).first(3), patches, donors)
    assert passed is False
    assert "breaks 3 of 3 images that were left" in detail


def test_masked_gradients_fail_an_audit_unless_they_were_smoothed():
    model = SelectiveClassifier(Clamped(), AcceptAll())
    x = torch.zeros(2, 1, 8, 8)
    y = torch.zeros(2, dtype=torch.int64)
    exact = robustness_curve(model, x, y, 0.1, budget=Nothing())
    passed, detail = AUDIT._gradients(few_of(model, exact))
    assert passed is False
    assert "did not smooth" in detail
    smooth = robustness_curve(model, x, y, 0.1, budget="quick")
    assert AUDIT._gradients(few_of(model, smooth))[0] is True


def test_a_black_box_attack_that_finds_more_fails_the_audit():
    x, y = grey(3)
    model = SelectiveClassifier(Pixels(), AcceptAll())
    few = few_of(model, robustness_curve(model, x, y, 0.3, budget=Nothing()))
    passed, detail = AUDIT._black_box(few)
    assert passed is False
    assert "breaks 3 of 3 images that were left" in detail
    assert AUDIT._black_box(few.first(0))[0] is None


@pytest.mark.parametrize(("norm", "whole"), [("Linf", 1), ("L2", 8)])
def test_the_whole_space_is_as_wide_as_its_norm_says(norm, whole):
    x, y = grey(2)
    # No image at all has a mean above 2; some have one above 0.95.
    for bound, expected in ((0.95, True), (2.0, False)):
        model = SelectiveClassifier(Pixels(bound), AcceptAll())
        curve = robustness_curve(model, x, y, 0.01, budget=Nothing(), norm=norm)
        few = few_of(model, curve)
        assert few.whole == whole
        assert AUDIT._everything_breaks(few)[0] is expected


@pytest.mark.parametrize(("network", "expected"), [(Pixels(), True), (Steps(), False)])
def test_a_network_without_gradients_fails_the_audit(network, expected):
    x, y = grey(2)
    model = SelectiveClassifier(network, AcceptAll())
    curve = robustness_curve(model, x, y, 0.1, budget=Nothing())
    assert AUDIT._gradients(few_of(model, curve))[0] is expected


def test_an_audit_without_points_says_so(evaluated):
    model, _, _, curve = evaluated
    with pytest.raises(ValueError, match="expected a curve with its points"):
        audit(model, replace(curve, points=None))


@pytest.mark.integration
def test_planted_inputs_are_found_by_the_ensemble_and_by_no_broken_one(monkeypatch):
    for rule in (Consistency(radius=0.02, steps=4, step_size=0.005), Confidence(threshold=0.6)):
        model = SelectiveClassifier(Curved(outputs=4, scale=4), rule)
        _, x, _ = make("cpr", count=12)
        y = model.judge(x).labels
        y = torch.where(y < 0, 0, y)
        answer = plant(model, x, y, 0.15, norm="Linf")
        assert answer.planted >= 2
        assert answer.found >= 0.95 * answer.planted
        assert answer.by_chance < answer.planted
    monkeypatch.setattr("cpr_wrap.evaluation.planted.run_stage", lambda *_: None)
    assert plant(model, x, y, 0.15, norm="Linf").found == 0


@pytest.mark.slow
def test_plants_that_random_points_find_prove_nothing(evaluated, monkeypatch):
    model, _, _, curve = evaluated
    for by_chance, expected in ((1, True), (3, None)):
        easy = Planted(planted=4, found=4, by_chance=by_chance)
        monkeypatch.setattr(AUDIT, "plant", lambda *_, easy=easy, **__: easy)
        check = audit(model, curve, num=1, black_box_num=1)[-2]
        assert check.passed is expected
        assert ("too easy to be a test" in check.detail) is (expected is None)


class Misleading(torch.nn.Module):
    """A network whose gradients point the wrong way."""

    def __init__(self, base):
        super().__init__()
        self.base, self.training = base, False

    def forward(self, x):
        return self.base(2 * x.detach() - x)


@pytest.mark.integration
def test_planted_inputs_are_missed_where_gradients_mislead():
    honest = SelectiveClassifier(Curved(outputs=4, scale=4), AcceptAll())
    _, x, _ = make("cpr", count=4)
    y = honest.judge(x).labels
    # Plants come from the honest network's gradients, attacks get the masked ones.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "cpr_wrap.evaluation.planted._search",
            lambda binary, *rest: search(
                SelectiveClassifier(Misleading(binary.base), binary.rule), *rest
            ),
        )
        answer = plant(honest, x, y, 0.15, norm="Linf")
    assert answer.planted >= 3
    assert answer.found < 0.95 * answer.planted


@dataclass(frozen=True)
class Without:
    """`quick` with one ingredient taken away."""

    ingredient: str
    name: str = "without"

    def stages(self, rule, eps):
        stages = [s for s in Quick().stages(rule, eps) if getattr(s, "sample", 1) == 1]
        changes = {"smoothing": {"gradient": "exact"}, "donors": {"starts": (0,)}}
        return tuple(
            replace(s, **changes[self.ingredient])
            if isinstance(s, Attack) and s.goal is Goal.ACCEPTED_MISTAKE
            else s
            for s in stages
        )


@pytest.mark.slow
@pytest.mark.parametrize("budget", [Before(), Without("smoothing"), Without("donors")], ids=str)
def test_an_audit_fails_the_former_standard_and_plans_that_lack_an_ingredient(budget):
    model = load("bundled:mnist-compact-at", rule="cpr", radius=0.1, steps=20, step_size=0.01)
    data = load_data("mnist", "robust", start=700, num=8)
    curve = robustness_curve(
        model, data.images, data.labels, 0.4, budget=budget, indices=data.indices
    )
    everyone = few_of(model, curve)
    left = everyone.take(~curve.records.outer_broken)
    assert len(left.x) >= 4  # else there is nothing to find
    fresh, restarts = AUDIT._fresh_donors(everyone), AUDIT.unused_restarts(model.rule)
    passed, detail = AUDIT._nothing_new(left, restarts, fresh)
    assert passed is False, detail
    assert AUDIT._gradients(left)[0] is (budget == Without("donors"))
