"""One judge that keeps all evidence: whatever was asked counts for every goal it touches."""

from __future__ import annotations

import foolbox
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_wrap.attacks.adaptive import FunctionAttack, as_stage, goal_of
from cpr_wrap.attacks.ensemble import Listed
from cpr_wrap.attacks.foolbox import FoolboxAttack
from cpr_wrap.engine.block import Block, rank_targets
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.evaluation import robustness_curve, verify_curve
from cpr_wrap.metrics import Origin
from cpr_wrap.objective import Goal
from cpr_wrap.rules import Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier
from tests.evaluation.test_curve import RULES, make
from tests.toys import Line


class Nothing:
    """A budget without attacks."""

    name = "nothing"

    def stages(self, rule, eps):
        return ()


def block_of(model, x, y, eps):
    block = Block(model, x, y, torch.arange(len(x)), eps=eps, norm="Linf", batch_size=3)
    block.judge_clean()
    rank_targets(block, 9)
    return block


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(sorted(RULES)),
    claimed=st.sampled_from(list(Goal)),
    eps=st.floats(0.02, 0.4),
)
def test_records_are_at_least_as_bad_as_any_point_that_was_judged(seed, name, claimed, eps):
    model, x, y = make(name, count=4, seed=seed % 7)
    block = block_of(model, x, y, eps)
    asked, owners = [], []
    judge = model.judge
    model.judge = lambda z: asked.extend(z.detach().clone()) or judge(z)
    random = torch.Generator().manual_seed(seed)
    for turn in range(3):
        image = torch.randint(4, (5,), generator=random)
        offset = (torch.rand(5, *x.shape[1:], generator=random, dtype=x.dtype) * 2 - 1) * 0.5
        radius = block.limit(claimed) * (0.4 + 0.3 * turn)
        block.consider(image, x[image] + offset, claimed, radius, Origin(attack="random"))
        # A search for the boundary asks for a verdict only where that costs nothing more.
        cheap = model.rule.cost.total == 1
        owners += image.tolist() if cheap or claimed is not Goal.MISTAKE else []
    model.judge = judge
    assert len(asked) == len(owners)
    for z, row in zip(asked, owners, strict=True):
        selection = model.judge(z[None])
        distance = float((z - x[row]).abs().max())
        known = {goal: float(found.distance[row]) for goal, found in block.found.items()}
        wrong, accepted = bool(selection.predicted[0] != y[row]), bool(selection.accepted[0])
        assert not wrong or known[Goal.MISTAKE] <= distance
        assert accepted or distance > eps or known[Goal.REJECTED] <= distance
        assert (
            not (accepted and wrong) or distance > eps or known[Goal.ACCEPTED_MISTAKE] <= distance
        )


def line_model(threshold=0.6):
    # Confidence 0.6 is a lead of log 1.5, 12 · distance to 0.5: rejected within 0.034 of it.
    return SelectiveClassifier(Line(slope=6), Confidence(threshold=threshold))


def test_a_point_counts_for_every_goal_it_reaches():
    model = line_model()
    x, y = torch.tensor([[0.45]], dtype=torch.float64), torch.tensor([0])
    block = block_of(model, x, y, 0.2)
    one = torch.tensor([0])
    # 0.51 is rejected and wrong, 0.6 accepted and wrong; both are put forward as something else.
    block.consider(one, torch.full_like(x, 0.51), Goal.ACCEPTED_MISTAKE, 0.2, Origin(attack="a"))
    assert float(block.found[Goal.REJECTED].distance) == pytest.approx(0.06)
    assert float(block.found[Goal.MISTAKE].distance) == pytest.approx(0.06)
    assert not block.found[Goal.ACCEPTED_MISTAKE].known.any()
    block.consider(one, torch.full_like(x, 0.6), Goal.REJECTED, 0.2, Origin(attack="b"))
    assert float(block.found[Goal.ACCEPTED_MISTAKE].distance) == pytest.approx(0.15)
    assert block.found[Goal.REJECTED].origin[0].attack == "a"


def test_points_beyond_eps_touch_the_boundary_alone():
    model = line_model().with_rule(Consistency(radius=0.2, steps=2, step_size=0.1))
    x, y = torch.tensor([[0.2]], dtype=torch.float64), torch.tensor([0])
    block = block_of(model, x, y, 0.25)
    assert block.limit(Goal.MISTAKE) == pytest.approx(0.45)
    far = torch.full_like(x, 0.6)
    block.consider(torch.tensor([0]), far, Goal.REJECTED, 0.45, Origin(attack="far"))
    assert float(block.found[Goal.MISTAKE].distance) == pytest.approx(0.4)
    assert not block.found[Goal.REJECTED].known.any()
    assert not block.found[Goal.ACCEPTED_MISTAKE].known.any()


def test_a_reach_in_another_norm_says_nothing_about_this_one():
    model = line_model().with_rule(Consistency(radius=0.2, steps=2, step_size=0.1, norm="L2"))
    block = block_of(model, torch.tensor([[0.2]], dtype=torch.float64), torch.tensor([0]), 0.25)
    assert block.limit(Goal.MISTAKE) == 0.25


def test_a_foolbox_attack_aimed_at_rejections_lowers_the_rejected_radius():
    model, x, y = make("confidence")
    guest = FoolboxAttack(foolbox.attacks.LinfPGD(steps=20), goal=Goal.REJECTED)
    before = robustness_curve(model, x, y, 0.15, budget=Nothing())
    curve = robustness_curve(model, x, y, 0.15, budget=Nothing(), extras=[guest])
    clean = before.records.rejected_radius.isfinite()
    assert (before.records.rejected_radius[clean] == 0).all()
    assert (curve.records.rejected_radius.isfinite() & ~clean).any()
    assert curve.error_at(1.0) > before.error_at(1.0)
    assert set(curve.records.rejected_by) == {"", "clean", guest.name}
    assert verify_curve(model, curve).holds


def towards_grey(model, x, y, eps):
    """Pull every pixel toward gray."""
    return x + eps * (0.5 - x).sign()


def with_keywords(model, x, y, eps, *, index, seed):
    assert seed == 5
    assert len(index) == len(x)
    return x


def test_a_plain_function_is_an_attack(tmp_path):
    model, x, y = make("confidence")
    curve = robustness_curve(
        model,
        x,
        y,
        0.2,
        budget=Nothing(),
        extras=[towards_grey, with_keywords],
        seed=5,
        store=tmp_path,
    )
    assert [stage.attack for stage in curve.passes[2:]] == ["towards_grey", "with_keywords"]
    assert "towards_grey" in {*curve.records.outer_by, *curve.records.rejected_by}
    assert goal_of(as_stage(towards_grey)) is Goal.ACCEPTED_MISTAKE
    assert isinstance(as_stage(towards_grey), FunctionAttack)


def _strict(x):
    raise TypeError("strict() takes 2 arguments")


@pytest.mark.parametrize("from_budget", [True, False])
@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (lambda x: x[:-1], ValueError, "attack 'guest': expected one point per image"),
        (lambda x: x.flatten(1), ValueError, "attack 'guest': expected one point per image"),
        (lambda x: x + torch.nan, ValueError, "attack 'guest': expected finite points"),
        (lambda x: x.tolist(), TypeError, "attack 'guest': expected a tensor of points, got list"),
        (_strict, RuntimeError, "attack 'guest' failed: TypeError: strict.. takes 2 arguments"),
    ],
)
def test_a_guest_that_answers_nonsense_is_named_before_any_work(
    answer, error, text, from_budget, monkeypatch
):
    model, x, y = make("confidence")
    monkeypatch.setattr(
        "cpr_wrap.evaluation.curve._evaluate", lambda *_: pytest.fail("work was done")
    )

    def guest(model, x, y, eps):
        return answer(x)

    budget = Listed(name="own", listed=(as_stage(guest),)) if from_budget else Nothing()
    extras = [] if from_budget else [guest]
    with pytest.raises(error, match=text):
        robustness_curve(model, x, y, 0.1, budget=budget, extras=extras)


def test_a_guest_is_tried_on_one_image_and_leaves_no_trace():
    model, x, y = make("confidence")
    seen = []

    def drawing(model, x, y, eps):
        model.logits(x)
        seen.append(len(x))
        return x + torch.rand_like(x)

    before = torch.random.get_rng_state()
    curve, plain = (
        robustness_curve(model, x, y, 1e-3, budget=Nothing(), extras=extras)
        for extras in ([drawing], [])
    )
    assert seen[0] == 1
    assert curve.passes[0].attack == "preflight"
    assert curve.passes[0].forwards == plain.passes[0].forwards + 1
    with torch.random.fork_rng():
        torch.random.set_rng_state(before)
        for _ in seen[1:]:
            torch.rand_like(x[: seen[1]])
        drawn = torch.random.get_rng_state()
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_a_guest_that_fails_later_is_named_too():
    model, x, y = make("confidence")

    def alone(model, x, y, eps):
        if len(x) > 1:
            raise KeyError("second image")
        return x

    with pytest.raises(RuntimeError, match="attack 'alone' failed: KeyError: 'second image'"):
        robustness_curve(model, x, y, 1e-3, budget=Nothing(), extras=[alone])


def test_what_is_no_attack_is_refused():
    class Unnamed:
        def perturb(self, *_, **__):
            return None

    with pytest.raises(TypeError, match="expected an attack with a name"):
        as_stage(Unnamed())
    with pytest.raises(TypeError, match="expected an attack: a stage, an object with a name"):
        as_stage("PGD")


def test_a_search_that_only_asks_for_the_boundary_costs_one_forward(monkeypatch):
    model, x, y = make("cpr", count=2)
    block = block_of(model, x, y, 0.1)
    monkeypatch.setattr(model, "judge", lambda _: pytest.fail("a verdict was asked for"))
    block.consider(torch.tensor([0, 1]), 1 - x, Goal.MISTAKE, 0.1, Origin(attack="boundary"))


def test_stages_find_the_given_points_of_their_block():
    from cpr_wrap.attacks.adaptive import GivenPoints

    model = line_model()
    x, y = torch.tensor([[0.45], [0.3]], dtype=torch.float64), torch.tensor([0, 0])
    block = block_of(model, x, y, 0.2)
    points = torch.tensor([[0.6], [0.51], [0.9]], dtype=torch.float64)
    run_stage(block, GivenPoints(torch.tensor([0, 0, 7]), points, "theirs"), seed=0)
    assert block.found[Goal.ACCEPTED_MISTAKE].known.tolist() == [True, False]
    assert block.found[Goal.REJECTED].origin[0] == Origin(attack="given points", run="theirs")
