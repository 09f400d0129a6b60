from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from cpr_wrap import CPRWrapper
from cpr_wrap.evaluation.assemble import rule_facts
from cpr_wrap.meter import count_passes
from cpr_wrap.metrics.evidence import Points, RuleFacts
from cpr_wrap.report.export import (
    adversarial_images,
    model_info,
    write_adversarial_images,
    write_model_info,
)
from cpr_wrap.zoo.robustbench import import_robustbench
from tests.report.making import full_curve, plain, settings
from tests.toys import Curved, pixels

FIELDS = {
    "link": str,
    "name": str,
    "authors": str,
    "number_forward_passes": int,
    "dataset": str,
    "venue": str,
    "architecture": str,
    "eps": str,
    "clean_acc": str,
    "external": str,
}


def test_fields_are_robustbenchs_and_percentages_are_text():
    curve = full_curve(count=40)
    info = model_info(curve, authors="A, B", autoattack_acc=0.5)
    for field, kind in FIELDS.items():
        assert isinstance(info[field], kind), field
    right = (curve.records.clean_label == curve.records.label).double().mean()
    assert info["clean_acc"] == f"{100 * right:.2f}"
    assert info["external"] == f"{100 * curve.accuracy_at(1.0):.2f}"
    assert info["autoattack_acc"] == "50.00"
    assert info["eps"] == "0.3"


def test_eps_is_a_fraction_where_people_write_one():
    assert model_info(full_curve(eps=8 / 255, count=10))["eps"] == "8/255"


def test_our_attacks_never_stand_in_for_autoattack():
    assert model_info(full_curve(count=10))["autoattack_acc"] is None


def test_what_rejection_changes_is_under_one_key():
    curve = full_curve(count=40)
    own = model_info(curve)["cpr_wrap"]
    assert own["total_robust_loss"]["ramp:2"] == curve.total_robust_loss("ramp:2")
    assert own["robustness_at_alpha"]["0.1"] == curve.accuracy_at(0.1)
    assert own["images"] == 40
    assert own["backward_passes_per_prediction"] == 20
    json.dumps(model_info(curve), allow_nan=False)


@pytest.mark.parametrize("steps", [1, 5])
def test_passes_of_a_prediction_are_those_that_are_counted(steps):
    model = CPRWrapper(Curved(), radius=0.01, steps=steps, step_size=0.01)
    with count_passes() as passes:
        model(pixels(3))
    facts = rule_facts(model.rule)
    own = model_info(plain(settings=settings(rule=facts)))["cpr_wrap"]
    assert own["forward_passes_per_prediction"] == steps + 1
    assert own["backward_passes_per_prediction"] == steps
    assert (passes.forwards, passes.backwards) == (3 * (steps + 1), 3 * steps)


def test_other_rules_take_one_pass():
    confident = RuleFacts(name="confidence", settings={"threshold": 0.9})
    info = model_info(plain(settings=settings(rule=confident)))
    assert info["number_forward_passes"] == 1
    assert info["cpr_wrap"]["backward_passes_per_prediction"] == 0


def test_the_file_stands_where_robustbench_looks(tmp_path):
    path = write_model_info(full_curve("Who/2024 <it>"), tmp_path, venue="ICML 2024")
    assert path == tmp_path / "mnist" / "Linf" / "Who_2024_it_.json"
    assert json.loads(path.read_text())["venue"] == "ICML 2024"


def test_names_cannot_leave_the_folder(tmp_path):
    path = write_model_info(full_curve("../../x", dataset="../y"), tmp_path / "info")
    assert (tmp_path / "info") in path.resolve().parents


def test_robustbench_sorts_our_file_by_our_accuracy():
    """Its tables take the first of these fields that a file has, as a number."""
    curve = full_curve(count=10)
    info = model_info(curve)
    first = next(info[field] for field in ("external", "autoattack_acc") if field in info)
    assert float(first) == pytest.approx(100 * curve.accuracy_at(1.0), abs=0.005)


@pytest.mark.slow
def test_robustbench_itself_reads_our_file(tmp_path, monkeypatch):
    utils = import_robustbench().utils
    curve = full_curve("Who2024It", dataset="cifar10", eps=8 / 255, count=10)
    write_model_info(curve, tmp_path / "model_info")
    monkeypatch.chdir(tmp_path)
    lines = utils.get_leaderboard_latex("cifar10", "Linf")
    assert "Who2024It" in lines
    assert f"{100 * curve.accuracy_at(1.0):.2f}" in lines


def test_images_are_in_the_order_of_the_test_set():
    curve = full_curve(count=12)
    order = torch.randperm(12)
    points = Points(**{name: t[order] for name, t in vars(curve.points).items()})
    shuffled = replace(curve, records=curve.records.subset(order), points=points)
    for goal in ("any", "mistake", "rejection"):
        assert torch.equal(adversarial_images(shuffled, goal), adversarial_images(curve, goal))


def test_each_goal_has_its_points():
    curve = full_curve(count=40)
    records, points = curve.records, vars(curve.points)
    broken, rejected = records.outer_broken, records.rejected_radius.isfinite()
    assert bool((broken & rejected).any())
    mistakes = adversarial_images(curve, "mistake")
    assert torch.equal(mistakes[broken], points["outer"][broken])
    assert torch.equal(mistakes[~broken], points["clean"][~broken])
    nearest = adversarial_images(curve, "rejection")
    assert torch.equal(nearest[rejected], points["rejected"][rejected])
    worst = adversarial_images(curve)
    assert torch.equal(worst[broken], points["outer"][broken])
    assert torch.equal(worst[~broken & rejected], points["rejected"][~broken & rejected])


def test_the_whole_test_set_fills_what_was_not_attacked(tmp_path):
    curve = full_curve(count=10)
    moved = replace(curve, records=replace(curve.records, index=torch.arange(10) * 2))
    images = torch.rand(30, 1, 8, 8)
    path = write_adversarial_images(moved, tmp_path / "new" / "adv.pt", images=images)
    whole = torch.load(path, weights_only=True)
    assert torch.equal(whole[0:20:2], adversarial_images(curve))
    rest = [k for k in range(30) if k >= 20 or k % 2]
    assert torch.equal(whole[rest], images[rest])


def test_mistaken_calls(tmp_path):
    curve = full_curve(count=10)
    with pytest.raises(ValueError, match="does not say which rejection rule it used"):
        model_info(plain())
    with pytest.raises(ValueError, match="does not say which data set it used"):
        write_model_info(full_curve(dataset=""), tmp_path)
    with pytest.raises(ValueError, match="has no points"):
        adversarial_images(plain())
    with pytest.raises(ValueError, match="goal: expected 'any', 'mistake' or 'rejection'"):
        adversarial_images(curve, "all")
    with pytest.raises(ValueError, match="images: expected a test set of at least 10 images"):
        adversarial_images(curve, images=torch.rand(9, 1, 8, 8))
    moved = replace(curve, records=replace(curve.records, index=torch.arange(10) + 5))
    with pytest.raises(ValueError, match="expected the first images of the test set, got others"):
        adversarial_images(moved)
