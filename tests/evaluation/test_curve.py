"""What `robustness_curve` promises, on small networks."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from cpr_wrap.attacks.adaptive import Attack, Halving
from cpr_wrap.attacks.ensemble import MORE_EFFORT, Quick, Standard
from cpr_wrap.engine.block import Block, rank_targets
from cpr_wrap.engine.progress import Status
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.evaluation import assemble, robustness_curve, save_result, verify_curve
from cpr_wrap.rules import AcceptAll, Confidence, Consistency, RectifiedConfidence, RejectClass
from cpr_wrap.selective import SelectiveClassifier
from tests.budgets import Little
from tests.devices import only_on
from tests.toys import Curved, pixels

RULES = {
    "cpr": Consistency(radius=0.03, steps=2, step_size=0.02),
    "confidence": Confidence(threshold=0.7),
    "rcd": RejectClass(),
    "atrr": RectifiedConfidence(threshold=0.3),
    "none": AcceptAll(),
}


def make(name: str, count: int = 8, seed: int = 0):
    rule = RULES[name]
    model = SelectiveClassifier(Curved(outputs=4 + rule.extra_outputs, seed=seed), rule)
    x = pixels(count, seed=seed + 1)
    with torch.no_grad():
        y = model.logits(x).argmax(dim=1)
    return model, x, y


@pytest.mark.parametrize("budget", ["quick", pytest.param("standard", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RULES)
def test_every_recorded_point_holds_for_an_independent_checker(name, budget):
    model, x, y = make(name, count=5)
    curve = robustness_curve(model, x, y, 0.1, budget=budget)
    check = verify_curve(model, curve)
    assert check.holds, check.problems
    assert check.checked >= len(x)
    records = curve.records
    if name == "none":
        assert not records.rejected_radius.isfinite().any()
    else:
        assert (records.outer_broken | records.rejected_radius.isfinite()).any()


@settings(max_examples=6)
@given(seed=st.integers(0, 1000), eps=st.floats(0.02, 0.3), name=st.sampled_from(sorted(RULES)))
def test_curves_never_fall_and_points_stay_in_their_balls(seed, eps, name):
    model, x, y = make(name, count=5, seed=seed)
    curve = robustness_curve(model, x, y, eps, budget="quick", seed=seed)
    errors = curve.error_at(torch.linspace(0, 1, 101, dtype=torch.float64))
    assert (errors.diff() >= 0).all()
    check = verify_curve(model, curve)
    assert check.holds, check.problems


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_quick_is_a_prefix_of_standard(rule):
    quick, standard = Quick().stages(rule, 0.1), Standard().stages(rule, 0.1)
    quick = tuple(stage for stage in quick if MORE_EFFORT not in stage.name)
    assert standard[: len(quick)] == quick


def test_standard_finds_no_less_than_quick_on_cpr(standard):
    _no_less(*standard)


@pytest.mark.parametrize(
    "name",
    ["confidence", "none", *(pytest.param(n, marks=pytest.mark.slow) for n in ("rcd", "atrr"))],
)
def test_standard_finds_no_less_than_quick(name):
    model, x, y = make(name, count=3)
    _no_less(model, x, y, robustness_curve(model, x, y, 0.1, budget="standard"))


def _no_less(model, x, y, many):
    few = robustness_curve(model, x, y, 0.1, budget="quick")
    alphas = torch.linspace(0, 1, 21, dtype=torch.float64)
    assert (many.error_at(alphas) >= few.error_at(alphas)).all()
    assert (
        (many.records.rejected_radius <= few.records.rejected_radius)
        .logical_or(many.records.outer_broken)
        .all()
    )


def test_same_seed_same_records_and_the_callers_state_is_untouched(standard):
    model, x, y, one = standard
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    two = robustness_curve(model, x, y, 0.1)
    assert one.records == two.records
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()
    assert all(p.grad is None and p.requires_grad for p in model.base.parameters())


@pytest.mark.parametrize("name", ["cpr", "confidence"])
def test_answers_do_not_depend_on_the_batch_size(name):
    model, x, y = make(name)
    one = robustness_curve(model, x, y, 0.1, batch_size=3, budget="quick")
    two = robustness_curve(model, x, y, 0.1, batch_size=64, budget="quick")
    # These networks round alike in any batch, and starts depend on the image alone. Of a broken
    # image, only what was seen before it broke is recorded, and that depends on its company.
    broken = one.records.outer_broken
    assert torch.equal(broken, two.records.outer_broken)
    radii = [curve.records.rejected_radius[~broken] for curve in (one, two)]
    assert torch.allclose(*radii)


def test_answers_do_not_depend_on_the_block_size_or_on_the_other_images():
    model, x, y = make("cpr")
    whole = robustness_curve(model, x, y, 0.1, budget="quick")
    part = robustness_curve(model, x, y, 0.1, budget="quick", block_size=5)
    assert whole.records == part.records
    tail = robustness_curve(model, x[4:], y[4:], 0.1, budget="quick", indices=range(4, 8))
    assert whole.records.subset(range(4, 8)) == tail.records


def test_a_data_set_gives_what_its_tensors_give():
    model, x, y = make("confidence")
    wanted = [7, 2, 5]
    data = robustness_curve(model, TensorDataset(x, y), None, 0.1, budget=Little(), indices=wanted)
    tensors = robustness_curve(model, x[wanted], y[wanted], 0.1, budget=Little(), indices=wanted)
    assert data.records == tensors.records
    assert data.records.index.tolist() == wanted


def test_passes_are_counted_for_every_attack_and_add_up():
    model, x, y = make("cpr")
    forwards = backwards = 0

    def count_forward(module, args):
        nonlocal forwards
        forwards += len(args[0])

    def count_backward(module, grad_in, grad_out):
        nonlocal backwards
        backwards += len(grad_out[0])

    hooks = [
        model.base.register_forward_pre_hook(count_forward),
        model.base.register_full_backward_hook(count_backward),
    ]
    curve = robustness_curve(model, x, y, 0.1, batch_size=8, budget="quick")
    for hook in hooks:
        hook.remove()
    assert [stage.attack for stage in curve.passes[:2]] == ["preflight", "clean"]
    assert forwards == sum(stage.forwards for stage in curve.passes)
    assert backwards == sum(stage.backwards for stage in curve.passes)
    assert curve.passes_per_image == (forwards + backwards) / len(x)


def test_ablation_runs_every_attack_alone():
    model, x, y = make("cpr", count=2)
    curve = robustness_curve(model, x, y, 0.1, budget="standard", ablation=True)
    rows = {(row.goal, row.attack): row for row in curve.ablation}
    assert ("accepted mistake", "CHCMOA") in rows
    assert ("rejected", "PATH-IA") in rows
    for (goal, _), row in rows.items():
        ensemble = curve.accuracy_at(1.0 if goal == "rejected" else 0.0)
        assert row.robustness >= ensemble - 1e-12


def test_ranks_share_the_work_of_an_ablation(monkeypatch):
    model, x, y = make("confidence", count=5)
    settings = {"eps": 0.1, "budget": Little(), "block_size": 2, "ablation": True}
    shares = []

    def table(world, rank, everything=None):
        def gather(mine):
            shares.append(mine)
            return everything or mine

        monkeypatch.setattr(assemble.ranks, "turns", lambda count: range(rank, count, world))
        monkeypatch.setattr(assemble.ranks, "gather", gather)
        return make_table(*asked)

    asked, make_table = [], assemble.ablation_table
    monkeypatch.setattr(assemble, "ablation_table", lambda *args: asked.extend(args) or [])
    robustness_curve(model, x, y, **settings)
    alone = table(1, 0)
    (everything,) = shares
    assert [table(3, rank, everything) for rank in range(3)] == [alone] * 3
    parts = shares[1:]
    assert sum(len(part) for part in parts) == len(everything)
    assert {key: value for part in parts for key, value in part.items()} == everything


def test_progress_is_told_and_reaches_the_end():
    model, x, y = make("confidence")
    heard: list[Status] = []
    curve = robustness_curve(model, x, y, 0.1, budget=Little(), block_size=5, progress=heard.append)
    assert heard[-1].fraction == pytest.approx(1)
    assert heard[-1].passes == sum(stage.passes for stage in curve.passes[1:])
    assert heard[-1].error_at_0 == pytest.approx(curve.error_at(0.0))
    assert heard[-1].error_at_1 == pytest.approx(curve.error_at(1.0))
    assert heard[-1].seconds_left == pytest.approx(0, abs=1e-6)
    fractions = [status.fraction for status in heard]
    assert fractions == sorted(fractions)


def test_a_bar_can_be_shown(capsys):
    model, x, y = make("none", count=2)
    robustness_curve(model, x, y, 0.1, budget=Little(), progress=True)
    assert capsys.readouterr().out == ""  # it is on standard error


def test_tensors_are_made_on_their_inputs_device():
    for name in ("cpr", "confidence"):
        model, x, y = make(name, count=3)
        with only_on("cpu"):
            block = Block(model, x, y, y, eps=0.1, norm="Linf", batch_size=8)
            block.judge_clean()
            rank_targets(block, 9)
            for stage in Standard().stages(model.rule, 0.1):
                if isinstance(stage, Attack):
                    stage = replace(stage, steps=min(stage.steps, 4))
                if isinstance(stage, Attack | Halving):
                    run_stage(block, stage, seed=0)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"y": None}, TypeError, "expected labels for a tensor"),
        ({"eps": -1.0}, ValueError, "eps: expected a finite number above 0"),
        ({"eps": 0.0}, ValueError, "eps: expected a finite number above 0"),
        ({"budget": "huge"}, LookupError, "unknown budget 'huge'"),
        ({"norm": "L7"}, LookupError, "unknown threat model 'L7'"),
        ({"indices": [1, 2]}, ValueError, "indices: expected one for each of 8 images, got 2"),
        ({"indices": [0, *range(7)]}, ValueError, "indices: expected every image once"),
        ({"indices": [-1, *range(7)]}, ValueError, "indices: expected numbers of at least 0"),
        ({"indices": [True] * 8}, ValueError, "indices: expected a list of whole numbers"),
        ({"indices": [[1] * 8]}, ValueError, "indices: expected a list of whole numbers"),
        ({"indices": [0.5] * 8}, ValueError, "indices: expected a list of whole numbers"),
        ({"indices": set(range(8))}, ValueError, "indices: expected a list of whole numbers"),
        ({"eps": True}, TypeError, "eps: expected a number, got True"),
        ({"eps": "8/255"}, TypeError, "eps: expected a number, got '8/255'"),
        ({"eps": 8}, ValueError, r"Linf 1 already reaches every image, got 8; did you mean 8/255"),
        ({"eps": 1e10}, ValueError, "already reaches every image, got 1e.10$"),
        ({"eps": 1e-15}, ValueError, "too small for torch.float64"),
        ({"alphas": [0, 2]}, ValueError, r"alphas: expected shares of eps in \[0, 1\]"),
        ({"alphas": "0,1"}, ValueError, "alphas: expected shares"),
        ({"batch_size": 0}, ValueError, "batch_size: expected a whole number of at least 1"),
        ({"block_size": -3}, ValueError, "block_size: expected a whole number of at least 1"),
        ({"seed": -1}, ValueError, "seed: expected a whole number from 0"),
        ({"seed": 1.5}, ValueError, "seed: expected a whole number from 0"),
        ({"seed": 2**70}, ValueError, "seed: expected a whole number from 0"),
        ({"extras": [3]}, TypeError, "expected an attack: a stage"),
        ({"extras": None}, TypeError, "extras: expected a list of attacks, got None"),
        ({"extras": "autoattack"}, TypeError, "extras: expected a list of attacks"),
        ({"extras": make}, TypeError, "extras: expected a list of attacks, got <function make"),
        ({"budget": 3}, TypeError, "budget: expected one with a name and stages"),
        ({"store": 3}, TypeError, "store: expected a folder, got 3"),
        ({"progress": "yes"}, TypeError, "progress: expected True, False or a function, got 'yes'"),
        ({"compile": "no"}, TypeError, "compile: expected True or False, got 'no'"),
        ({"channels_last": 1}, TypeError, "channels_last: expected True or False, got 1"),
        ({"x": np.zeros((8, 1, 2, 2)), "y": None}, TypeError, "torch.from_numpy"),
        ({"x": np.zeros((8, 1, 2, 2))}, TypeError, "torch.from_numpy"),
        (
            {"y": torch.tensor([0] * 6 + [9, 0])},
            ValueError,
            "image 6: expected a label from 0 to 3",
        ),
        ({"y": torch.zeros(5, dtype=torch.int64)}, ValueError, "one label for each of the 8"),
        ({"x": torch.full((8, 1, 2, 2), torch.nan)}, ValueError, "NaN"),
        ({"x": torch.full((8, 1, 2, 2), 3.0)}, ValueError, r"pixels in \[0, 1\]"),
        ({"x": iter([]), "y": None}, TypeError, "a data set with a length"),
        ({"dtype": "fp8"}, ValueError, "dtype: expected bf16, fp16 or None"),
    ],
)
def test_bad_input_is_refused_before_any_work(change, error, text, monkeypatch):
    model, x, y = make("confidence")
    monkeypatch.setattr(
        "cpr_wrap.evaluation.curve._evaluate", lambda *_: pytest.fail("work was done")
    )
    with pytest.raises(error, match=text):
        robustness_curve(**{"model": model, "x": x, "y": y, "eps": 0.1, **change})


def test_labels_beside_a_data_set_are_refused():
    model, x, y = make("confidence")
    with pytest.raises(TypeError, match="has its own labels"):
        robustness_curve(model, TensorDataset(x, y), y, 0.1)


def test_training_mode_is_refused():
    model, x, y = make("confidence")
    model.base.train()
    with pytest.raises(ValueError, match="eval mode"):
        robustness_curve(model, x, y, 0.1)


def test_eps_may_be_a_tensor_or_an_array_of_one_number(tmp_path):
    model, x, y = make("confidence", count=2)
    for eps in (torch.tensor(0.1), np.float64(0.1)):
        curve = robustness_curve(model, x.requires_grad_(), y, eps, budget=Little())
        save_result(curve, tmp_path)
        assert isinstance(curve.eps, float)


class Labelled(TensorDataset):
    """A data set whose labels are what they are told to be."""

    def __init__(self, x, label):
        super().__init__(x)
        self.label = label

    def __getitem__(self, number):
        return super().__getitem__(number)[0], self.label


@pytest.mark.parametrize(
    ("label", "error", "message"),
    [
        (-1, ValueError, "image 3: expected labels from 0, got labels from -1"),
        (0.5, TypeError, "image 3: expected integer labels, got torch.float"),
        (True, TypeError, "image 3: expected integer labels, got torch.bool"),
        (torch.tensor(1.0), TypeError, "image 3: expected integer labels, got torch.float"),
        ("cat", ValueError, r"images: expected tensors \(C, H, W\) .* with labels \(.*'str'\)"),
    ],
)
def test_a_bad_label_of_a_data_set_is_named_with_its_image(label, error, message):
    model, x, _ = make("confidence")
    with pytest.raises(error, match=message):
        robustness_curve(model, Labelled(x, label), None, 0.1, indices=[3, 4])


def test_a_label_without_a_class_is_named_with_its_image():
    model, x, y = make("confidence")
    y[6] = 9
    with pytest.raises(ValueError, match="image 6: expected a label from 0 to 3, got 9"):
        robustness_curve(
            model, TensorDataset(x, y), None, 0.1, budget="quick", indices=[5, 6], block_size=1
        )


def test_sizes_and_seeds_may_be_numbers_of_an_array():
    model, x, y = make("confidence", count=2)
    three = np.int64(3)
    sizes = {"batch_size": three, "block_size": three, "seed": three}
    settings = robustness_curve(model, x, y, 0.1, budget=Little(), **sizes).settings
    assert [type(getattr(settings, name)) for name in sizes] == [int] * 3


def test_a_bad_image_of_a_data_set_is_named():
    model, x, y = make("confidence")
    with pytest.raises(ValueError, match=r"image 2: expected pixels in \[0, 1\]"):
        robustness_curve(
            model, TensorDataset(x + 2 * (y >= 0)[:, None, None, None], y), None, 0.1, indices=[2]
        )


def test_a_loader_gives_what_its_tensors_give():
    model, x, y = make("confidence")
    loader = DataLoader(TensorDataset(x, y), batch_size=3)
    whole = robustness_curve(model, x, y, 0.1, budget=Little())
    assert robustness_curve(model, loader, None, 0.1, budget=Little()).records == whole.records
