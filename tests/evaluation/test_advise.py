"""Advice on a network whose losses are known: distances to the line's boundary say everything."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.attacks.ensemble import MORE_EFFORT, Quick
from cpr_wrap.evaluation import advice as trying
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.evaluation.advising import advise
from cpr_wrap.rules import AcceptAll, Confidence, Consistency, RejectClass
from cpr_wrap.selective import SelectiveClassifier
from tests.toys import Line, Linear

EPS, COST = 0.2, "step:0.05"
RADII = (0.02, 0.06, 0.0951, 0.1401, 0.19)
ONE_BATCH = {"batch_size": 256, "block_size": 128}
DISTANCES = 0.005 + 0.01 * torch.arange(40, dtype=torch.float64)


def images(count=1):
    """Images at known distances on both sides, `count` of each."""
    x = torch.cat([0.5 - DISTANCES, 0.5 + DISTANCES])[:, None].repeat_interleave(count, dim=0)
    return x, (x[:, 0] > 0.5).long()


def true_loss(radius):
    """Within eps - radius there is an accepted mistake; within radius + 0.05 eps a rejection."""
    reach = max(EPS - radius, radius + 0.05 * EPS if radius else 0)
    lost = (DISTANCES - reach) <= 0
    return float(lost.double().mean())


@dataclass(frozen=True)
class Glance:
    """Judges clean images only, for a screening that finds next to nothing."""

    name: str = "glance"

    def stages(self, rule, eps):
        return ()


@dataclass(frozen=True)
class Short(Quick):
    """`quick` with fewer steps, which are enough on a line."""

    name: str = "short"

    def stages(self, rule, eps):
        stages = [s for s in super().stages(rule, eps) if MORE_EFFORT not in s.name]
        return tuple(
            replace(s, steps=min(s.steps, 8)) if isinstance(s, Attack) else s for s in stages
        )


@dataclass(frozen=True)
class Whole(Short):
    """The same under another name."""

    name: str = "whole"


def rules():
    return [AcceptAll(), *(Consistency(radius=radius, steps=3) for radius in RADII)]


def advice(**more):
    x, y = images()
    settings = {"candidates": rules(), "validation": (x, y), **ONE_BATCH}
    settings |= {"budget": Whole(), "screening": Short()}
    return advise(Line(slope=4), x, y, EPS, COST, **{**settings, **more})


@pytest.fixture(scope="module")
def usual():
    return advice()


def test_the_least_true_loss_is_advised(usual):
    radius = min((0.0, *RADII), key=true_loss)
    assert usual.best.rule.radius == radius
    assert not usual.tied
    assert usual.best.reported.total_robust_loss(COST) == pytest.approx(true_loss(radius), abs=0.03)
    assert "cpr (Linf radius 0.0951" in str(usual)


def test_bounds_never_exceed_the_truth_and_losers_get_no_more_passes(usual):
    leader = usual.best.curve.total_robust_loss(COST)
    for each in usual.candidates:
        bound = each.curve.total_robust_loss(COST)
        assert bound <= true_loss(getattr(each.rule, "radius", 0.0)) + 1e-9
        searched = [stage for stage in each.curve.passes if stage.attack not in _CHEAP]
        whole = {stage.attack for stage in searched}
        assert each.full == (each is usual.best)
        assert len(searched) == len(whole) * (2 if each.full else 1)
        assert each is usual.best or bound > leader


_CHEAP = {"preflight", "clean", "given points"}


def test_who_is_given_up_would_not_have_won_with_more_passes(usual):
    """The law behind it: with all known points and the full budget a loss is at least its bound."""
    x, y = images()
    leader = usual.best.curve.total_robust_loss(COST)
    for each in usual.candidates:
        if each.full:
            continue
        later = robustness_curve(
            each.model, x, y, EPS, budget=Whole(), points=each.curve, **ONE_BATCH
        )
        before, after = (c.image_losses(COST) for c in (each.curve, later))
        assert (after >= before).all()
        assert later.total_robust_loss(COST) >= each.curve.total_robust_loss(COST) > leader


def test_a_blind_screening_cannot_mislead(recwarn):
    """Where it finds nothing all bounds are zero, so everybody gets the full budget in the end."""
    found = advice(screening=Glance(), candidates=rules()[1:4])
    assert found.best.rule.radius == 0.0951
    assert sum(each.full for each in found.candidates) >= 2
    assert not [each for each in recwarn if "none of them belongs" in str(each.message)]


def test_points_of_one_are_judged_for_all():
    """A screening that finds nothing still gets what the full budget found for another."""
    found = advice(screening=Glance(), candidates=rules()[:2])
    plain = next(c for c in found.candidates if isinstance(c.rule, AcceptAll))
    stages = [stage.attack for stage in plain.curve.passes]
    assert "given points" in stages
    assert plain.curve.total_robust_loss(COST) > 0


def test_a_tie_is_called_one_and_the_cheaper_is_advised():
    alike = [Consistency(radius=0.0951, steps=steps) for steps in (6, 2)]
    found = advice(candidates=alike, progress=lambda text: None)
    assert found.best.rule.steps == 2
    assert [each.rule.steps for each in found.tied] == [6]
    assert all(each.full and each.reported for each in found.candidates)
    assert "a tie within chance on 80 images" in str(found)


def test_chosen_on_one_half_and_reported_on_the_other():
    x, y = images(2)  # every image twice, side by side, nearly: one for each half
    x[1::2] += 1e-4
    found = advise(
        Line(slope=4), x, y, EPS, COST, candidates=rules()[2:4], budget="quick", **ONE_BATCH
    )
    assert found.images == (80, 80)
    assert torch.equal(found.best.curve.points.clean, x[::2])
    assert torch.equal(found.best.reported.points.clean, x[1::2])
    assert found.best.reported.records.index.tolist() == list(range(80))
    rows = found.rows()
    assert rows[0]["status"] == "advised"
    assert rows[0]["reported_low"] <= rows[0]["reported_loss"] <= rows[0]["reported_high"]
    assert rows[1]["reported_loss"] is None
    assert list(found.to_frame()["rule"]) == [row["rule"] for row in rows]


def test_limits_leave_candidates_out_and_say_why():
    found = advice(max_clean_rejection=0.1, candidates=rules()[1:4])  # 0.02: 5 %; 0.06: 15 %
    assert found.best.rule.radius == 0.02
    assert [c.why for c in found.candidates[1:]] == [
        "rejects 15.0% of clean images",
        "rejects 25.0% of clean images",
    ]
    assert found.candidates[1].curve is None
    with pytest.raises(ValueError, match=r"none of 1 candidates is within .* rejection is 5.00%"):
        advice(max_clean_rejection=0.01, candidates=rules()[1:2])


def test_slow_candidates_are_left_out(monkeypatch):
    monkeypatch.setattr(
        "cpr_wrap.evaluation.advising.latency", lambda model, x: model.rule.cost.total / 1000
    )
    found = advice(max_latency=0.005, candidates=[AcceptAll(), Consistency(radius=0.0951, steps=3)])
    assert isinstance(found.best.rule, AcceptAll)
    assert found.candidates[1].why == "takes 7 ms"
    assert found.gain is None


def test_the_gain_over_the_plain_network_is_measured_on_other_images(usual):
    assert usual.gain.gap == pytest.approx(true_loss(0) - true_loss(0.0951), abs=0.03)
    assert usual.gain.sign == 1


def test_usual_candidates_span_rules_and_settings():
    x, y = images()
    model = SelectiveClassifier(Line(slope=20), Consistency(radius=0.07, steps=4))
    found, notes = trying.default_candidates(model, x, y, EPS, "Linf")
    assert isinstance(found[0], AcceptAll)
    assert len(set(found)) == len(found)
    assert model.rule in found
    confident = [rule for rule in found if isinstance(rule, Confidence)]
    assert [float((model.with_rule(rule)(x).accepted).double().mean()) for rule in confident] == [
        pytest.approx(0.95)
    ]  # 1 % of 80 images is none
    radii = {round(rule.radius / EPS, 3) for rule in found if isinstance(rule, Consistency)}
    assert {0.1, 0.2, 0.333, 0.5, 0.667, 0.35} <= radii
    assert {rule.steps for rule in found if isinstance(rule, Consistency)} == {4, 5, 20}
    assert all(note.startswith("verified is left out: no bounds for") for note in notes)


def test_a_verified_rule_is_tried_where_the_network_allows_it(monkeypatch):
    from cpr_wrap.rule import RULES

    @dataclass(frozen=True, kw_only=True)
    class Checked(Consistency):
        """Stands in for a rule that proves what it accepts."""

    @dataclass(frozen=True, kw_only=True)
    class Stuck(Consistency):
        def view(self, *args, **settings):
            raise NotImplementedError("cannot bound this network")

    x, y = images()
    model = SelectiveClassifier(Line(), AcceptAll())
    for rule, number in ((Checked, 2), (Stuck, 0)):
        monkeypatch.setitem(RULES._entries, "verified", rule)
        found, notes = trying.default_candidates(
            model, x, y, EPS, "Linf", radii=[0.03, 0.05], steps=[], thresholds=[]
        )
        assert sum(type(each) is rule for each in found) == number
    assert notes == ["verified is left out: cannot bound this network"]


def test_a_fragile_network_is_told_of_where_radii_are_given_too():
    x, y = images()
    half = 0.5 + (x - 0.5) * 1e-3  # every image within 0.05 % of the boundary
    model = SelectiveClassifier(Line(slope=20), AcceptAll())
    for radii in (None, [0.05]):
        found, notes = trying.default_candidates(model, half, y, EPS, "Linf", radii=radii)
        assert any("below half a gray level" in note for note in notes)
        assert radii is None or {r.radius for r in found if type(r) is Consistency} == {0.05}


def test_too_few_images_for_a_threshold_are_told_of():
    x, y = images()
    model = SelectiveClassifier(Line(slope=20), AcceptAll())
    found, notes = trying.default_candidates(model, x[:6], y[:6], EPS, "Linf", radii=[], steps=[])
    assert Confidence not in map(type, found)
    assert notes[0].startswith("confidence is left out: 6 correctly classified images cannot")


def test_a_network_with_extra_outputs_is_tried_with_rules_that_read_them():
    x, y = images()
    three = Linear([[-1.0], [1.0], [0.0]], [0.5, -0.5, -9.0])
    found, _ = trying.default_candidates(
        SelectiveClassifier(three, RejectClass()), x, y, EPS, "Linf"
    )
    assert found == [RejectClass()]


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"candidates": rules()[:1], "radii": [0.1]}, TypeError, "expected without radii"),
        ({"candidates": []}, ValueError, "candidates: expected at least one rule, got none"),
        ({"max_clean_rejection": 5}, ValueError, "expected a share from 0 to 1, got 5"),
        ({"max_latency": 0.0}, ValueError, "max_latency: expected a finite number above 0"),
        ({"eps": 0.0}, ValueError, "eps: expected a finite number above 0"),
        ({"y": None}, TypeError, "y: expected labels for a tensor"),
        ({"x": torch.rand(1, 1), "y": torch.zeros(1).long()}, ValueError, "at least two images"),
    ],
)
def test_what_cannot_be_advised_on(more, error, words):
    x, y = images()
    settings = {"x": x, "y": y, "eps": EPS, "candidates": rules(), **more}
    with pytest.raises(error, match=words):
        advise(Line(), settings.pop("x"), settings.pop("y"), settings.pop("eps"), COST, **settings)
