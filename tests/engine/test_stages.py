"""The engine: what it does not do twice, and what it does when memory runs out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpr_wrap.attacks.adaptive import KNOWN, Attack, Halving
from cpr_wrap.attacks.ensemble import BUDGETS, backtracking
from cpr_wrap.attacks.paper import Paper
from cpr_wrap.engine.block import Block, Found, rank_targets
from cpr_wrap.engine.evaluate import Work, evaluate_block
from cpr_wrap.engine.images import Images
from cpr_wrap.engine.precision import Precision
from cpr_wrap.engine.search import Search
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.evaluation import robustness_curve, verify_curve
from cpr_wrap.meter import count_passes
from cpr_wrap.objective import Goal, confident_mistake, lost_margin, low_confidence, objective
from cpr_wrap.rules import AcceptAll, Confidence, Consistency
from cpr_wrap.rules.cpr import consistent_mistake, disagreement
from cpr_wrap.selective import SelectiveClassifier
from tests.budgets import Little
from tests.evaluation.test_curve import make
from tests.toys import Curved, Line, Linear, pixels


def block_of(model, x, y, eps=0.1, batch_size=8, norm="Linf"):
    block = Block(model, x, y, torch.arange(len(x)), eps=eps, norm=norm, batch_size=batch_size)
    block.judge_clean()
    rank_targets(block, 9)
    return block


def outer(**change):
    settings = {"objective": confident_mistake, "goal": Goal.ACCEPTED_MISTAKE, "steps": 6}
    return Attack(**{**settings, "step": 1 / 3, **change})


def test_broken_images_cost_nothing_more():
    model, x, y = make("none")
    block = block_of(model, x, y, eps=1.0)
    run_stage(block, outer(steps=30, starts=(0, 1)), seed=0)
    broken = block.found[Goal.ACCEPTED_MISTAKE].known
    assert broken.all()
    with count_passes() as passes:
        run_stage(block, outer(), seed=0)
    assert passes.total == 0


def test_a_climb_costs_its_iterations_and_not_more():
    model, x, y = make("none", count=3)
    block = block_of(model, x, y, eps=1e-6)  # nothing can be reached in so small a ball
    with count_passes() as passes:
        run_stage(block, outer(steps=6, targets=2), seed=0)
    rows = 3 * 2
    assert (passes.forwards, passes.backwards) == (rows * 7, rows * 6)


@pytest.mark.parametrize("stand_in", [True, False])
def test_what_a_climb_through_t_costs(stand_in):
    model, x, y = make("cpr", count=3)
    block = block_of(model, x, y, eps=1e-6)
    attack = outer(objective=consistent_mistake, steps=4, targets=1, stand_in=stand_in)
    with count_passes() as passes:
        run_stage(block, attack, seed=0)
    m = 1 if stand_in else model.rule.steps
    # At every point: T's steps, z and T(z); gradients for T's steps, and two for the objective.
    # At the last point nothing is differentiated, and T's first forward is the one at z.
    assert passes.forwards == 3 * (4 * (m + 2) + (m + 1))
    assert passes.backwards == 3 * (5 * m + 4 * 2)


def test_rows_of_settled_images_make_room_for_others():
    model, x, y = make("none")
    small, large = block_of(model, x, y, eps=0.3, batch_size=2), block_of(model, x, y, eps=0.3)
    for block in (small, large):
        run_stage(block, outer(steps=10, starts=(0, 1)), seed=0)
    found = [block.found[Goal.ACCEPTED_MISTAKE].known for block in (small, large)]
    assert torch.equal(*found)


def test_likely_targets_are_ranked_by_distance_not_by_logit():
    # Class 1 trails by 1 with slope 1 on one pixel; class 2 by 2 with slope 10 on the other.
    net = Linear([[0, 0], [1, 0], [0, 10.0]], [2.0, 1 - 0.5, -5.0])
    model = SelectiveClassifier(net, AcceptAll())
    x = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert model.logits(x).tolist() == [[2.0, 1.0, 0.0]]
    assert block_of(model, x, torch.tensor([0])).order.tolist() == [[2, 1]]
    few = Block(model, x, torch.tensor([0]), torch.arange(1), eps=0.1, norm="Linf", batch_size=4)
    rank_targets(few, 1)  # with many classes only the largest logits are ranked
    assert few.order.tolist() == [[1]]


def test_selection_by_loss_proposes_one_point_an_image():
    model, x, y = make("confidence")
    block = block_of(model, x, y, eps=0.2)
    asked = []
    consider = block.consider
    block.consider = lambda image, *rest: asked.append(image.tolist()) or consider(image, *rest)
    run_stage(block, outer(select="loss", starts=(0, 1, 2)), seed=0)
    assert len(asked) == 1
    assert len(asked[0]) == len(set(asked[0]))
    by_success = block_of(model, x, y, eps=0.2)
    run_stage(by_success, outer(starts=(0, 1, 2)), seed=0)
    goal = Goal.ACCEPTED_MISTAKE
    assert int(by_success.found[goal].known.sum()) >= int(block.found[goal].known.sum())


def test_smallest_radius_search_closes_in_on_the_boundary():
    # Points beyond eps touch the network's boundary alone, so that no image is settled by one.
    model = SelectiveClassifier(Line(), Consistency(radius=0.38, steps=1))
    x = torch.tensor([[0.2], [0.45], [0.71]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1])
    block = block_of(model, x, y, eps=0.02)
    attack = Attack(
        objective=lost_margin, goal=Goal.MISTAKE, steps=20, step=0.3, momentum=0.0, rounds=1
    )
    run_stage(block, attack, seed=0)
    run_stage(block, Halving(goal=Goal.MISTAKE, rounds=20), seed=0)
    distance = block.found[Goal.MISTAKE].distance
    assert torch.allclose(distance, torch.tensor([0.3, 0.05, 0.21]).double(), atol=1e-5)
    # Class 1 begins at 0.5 itself, so from above the boundary must be crossed.
    assert (distance >= torch.tensor([0.3, 0.05, 0.21]).double() - 1e-12).all()


def test_known_start_is_pulled_into_a_smaller_ball():
    model = SelectiveClassifier(Line(slope=3), Confidence(threshold=0.6))
    x, y = torch.tensor([[0.2]], dtype=torch.float64), torch.tensor([0])
    block = block_of(model, x, y, eps=0.5)
    inner = Attack(
        objective=low_confidence,
        goal=Goal.REJECTED,
        steps=10,
        step=0.3,
        starts=(KNOWN,),
        rounds=12,
    )
    run_stage(block, inner, seed=0)
    # Confidence 0.6 is a lead of log 1.5, which is 6 · distance to 0.5.
    truth = 0.3 - float(torch.tensor(1.5).log()) / 6
    assert float(block.found[Goal.REJECTED].distance) == pytest.approx(truth, rel=0.02)
    assert block.found[Goal.REJECTED].origin[0].start == KNOWN


def test_the_paper_preset_runs_every_attack_at_every_alpha():
    model, x, y = make("cpr", count=2)
    plan = Paper(steps=3, random_starts=1, step_sizes=(0.02,), autoattack=None)
    stages = plan.stages(model.rule, 0.1)
    assert [stage.name for stage in stages] == ["HCMOA", "CHCMOA", "LCIA", "CLCIA", "PDIA"]
    assert all(not s.stand_in and s.select == "loss" and s.starts == (0, 1) for s in stages)
    assert stages[-1].alphas == (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 1.0)
    curve = robustness_curve(model, x, y, 0.1, budget=plan)
    assert curve.settings.budget == "paper"
    full = BUDGETS["paper"].stages(model.rule, 0.3)
    sizes = {round(stage.step * 0.3, 6) for stage in full[1:]}
    assert sizes == {0.1, 0.01, 0.005}
    assert {stage.steps for stage in full[1:]} == {200}
    assert {stage.starts for stage in full[1:]} == {(0, 1, 2, 3, 4, 5)}
    published = BUDGETS["published"].stages(model.rule, 0.3)
    starts = {stage.objective.name: stage.starts for stage in published[1:]}
    assert starts["PDIA"] == (1,)
    assert starts["CHCMOA"] == (1, 2, 3, 4, 5)
    assert starts["LCIA"] == (0, 1, 2, 3, 4, 5)
    with pytest.raises(ValueError, match="step_sizes"):
        Paper(step_sizes=(0.1, -1.0))


def test_backtracking_attack_has_ccats_settings():
    attack = backtracking(0.3)
    assert (attack.steps, attack.backtrack, attack.momentum) == (1000, 1.1, 0.9)
    assert attack.step * 0.3 == pytest.approx(0.001)
    assert len(attack.starts) == 10
    model, x, y = make("confidence", count=2)
    block = block_of(model, x, y, eps=0.3)
    run_stage(block, backtracking(0.3, steps=5, restarts=1), seed=0)


def test_pdia_aims_at_the_true_class_too():
    model, x, y = make("cpr", count=2)
    block = block_of(model, x, y)
    seen = []
    objective = disagreement
    terms = objective.terms

    def spy(view):
        seen.append(view.target.tolist())
        return terms(view)

    attack = Attack(
        objective=replace(objective, terms=spy),
        goal=Goal.REJECTED,
        steps=1,
        step=0.3,
        targets=1,
    )
    run_stage(block, attack, seed=0)
    assert set(y.tolist()) <= {t for row in seen for t in row}


def test_running_out_of_memory_redoes_the_unit_in_smaller_batches():
    model, x, y = make("confidence")
    whole = robustness_curve(model, x, y, 0.1, budget=Little(), batch_size=2)

    def refuse(module, args):
        if len(args[0]) > 2:
            raise torch.OutOfMemoryError("out of memory")

    hook = model.base.register_forward_pre_hook(refuse)
    curve = robustness_curve(model, x, y, 0.1, budget=Little(), batch_size=8)
    hook.remove()
    assert curve.records == whole.records
    assert any("redone with batches of 2" in note for note in curve.provenance.notes)


def test_no_memory_for_a_single_image_is_said():
    model, x, y = make("confidence", count=2)
    calls = []

    def refuse(module, args):
        calls.append(1)
        if len(calls) > 1:
            raise torch.OutOfMemoryError("out of memory")

    model.base.register_forward_pre_hook(refuse)
    with pytest.raises(RuntimeError, match="batch of a single image"):
        robustness_curve(model, x, y, 0.1, budget="quick", batch_size=2)


def test_all_targets_means_all_of_them_and_the_likeliest_nine_otherwise():
    model = SelectiveClassifier(Curved(outputs=14), AcceptAll())
    x = pixels(2)
    y = model.judge(x).labels
    for targets, expected in ((None, 13), (9, 9), (11, 11)):
        work = Work(
            model=model,
            stages=(outer(targets=targets, steps=1),),
            eps=0.1,
            norm="Linf",
            seed=0,
            batch_size=8,
            precision=Precision(),
        )
        block, _ = evaluate_block(work, Images(x=x, y=y, index=y))
        assert block.order.shape == (2, expected)


@pytest.mark.parametrize("name", ["cpr", "confidence"])
def test_looking_less_often_ends_all_the_same_and_finds_as_much(name, monkeypatch):
    model, x, y = make(name)
    often = robustness_curve(model, x, y, 0.1, budget="quick", batch_size=5)
    init = Search.__init__

    def rarely(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.poll = 4  # as on a GPU

    monkeypatch.setattr(Search, "__init__", rarely)
    seldom = robustness_curve(model, x, y, 0.1, budget="quick", batch_size=5)
    assert verify_curve(model, seldom).holds
    assert torch.equal(often.records.outer_broken, seldom.records.outer_broken)
    assert abs(often.robust_error - seldom.robust_error) < 0.2


class Elsewhere:
    """An attack from elsewhere that notes how many images it gets at once."""

    name = "elsewhere"

    def __init__(self, room=8):
        self.room, self.seen = room, []

    def __repr__(self):
        return "Elsewhere()"

    def perturb(self, model, x, y, eps, *, norm, seed, index):
        if len(x) > self.room:
            raise torch.OutOfMemoryError("out of memory")
        self.seen.append(index.tolist())
        return x + 0.9 * eps


def test_attacks_from_elsewhere_keep_to_the_batch_size():
    model, x, y = make("none")
    whole, parts = Elsewhere(), Elsewhere()
    blocks = [block_of(model, x, y, eps=1.0, batch_size=size) for size in (8, 3)]
    for block, attack in zip(blocks, (whole, parts), strict=True):
        run_stage(block, attack, seed=0)
    assert [number for part in parts.seen for number in part] == whole.seen[0]
    assert max(map(len, parts.seen)) == 3
    goal = Goal.ACCEPTED_MISTAKE
    assert blocks[0].found[goal].distance.isfinite().any()
    assert torch.equal(*(block.found[goal].distance for block in blocks))


def test_attacks_from_elsewhere_run_out_of_memory_like_ours():
    model, x, y = make("confidence")
    attack = Elsewhere(room=2)
    curve = robustness_curve(model, x, y, 0.1, budget="quick", batch_size=8, extras=[attack])
    assert max(map(len, attack.seen)) == 2
    assert any("redone with batches of 2" in note for note in curve.provenance.notes)


@pytest.mark.parametrize(("path", "expected"), [((1.0,), [7, 10, 13]), ((), [7, 13])])
def test_what_seems_to_succeed_is_judged_on_the_way(monkeypatch, path, expected):
    model, x, y = make("cpr", count=2)
    clock = torch.zeros(())

    @objective("rising", path=path)
    def rising(view):
        clock.add_(1)
        return (view.logits[:, 0] * 0 + clock,)

    judged = []
    monkeypatch.setattr(
        Search, "_seems_to_hit", lambda _, view, y: torch.ones_like(y, dtype=torch.bool)
    )
    monkeypatch.setattr(Search, "_judge", lambda *_: judged.append(int(clock)))
    run_stage(block_of(model, x, y), outer(objective=rising, steps=12), seed=0)
    # The first point of the second half, the last, and some between where T(z) was looked at.
    assert judged == expected


def test_accepted_mistakes_that_are_given_are_left_as_they_were():
    model, x, y = make("none", count=3)
    images = Images(x=x, y=y, index=torch.arange(3))
    work = Work(
        model=model,
        stages=(outer(steps=30, starts=(0, 1)),),
        eps=1.0,
        norm="Linf",
        seed=0,
        batch_size=8,
        precision=Precision(),
    )
    given = Found(x)
    block, _ = evaluate_block(work, images, given=given)
    assert block.found[Goal.ACCEPTED_MISTAKE].known.all()
    assert not given.known.any()
    assert torch.equal(given.point, x)
