"""Result folders, the independent checker, the estimate and the audit."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace

import pytest
import torch

from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.attacks.ensemble import Quick
from cpr_wrap.evaluation import (
    audit,
    estimate_cost,
    load_result,
    risk_coverages,
    robustness_curve,
    save_result,
    verify_curve,
    verify_result,
)
from cpr_wrap.evaluation.audit import as_rows
from cpr_wrap.evaluation.planted import Planted, plant
from cpr_wrap.evaluation.planted import _search as search
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.objective import Goal, objective
from cpr_wrap.rules import AcceptAll, Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier
from tests.evaluation.test_curve import make
from tests.toys import Curved


@pytest.fixture(scope="module")
def evaluated():
    model, x, y = make("cpr")
    return model, x, y, robustness_curve(model, x, y, 0.1, budget="quick")


def test_a_saved_result_comes_back_whole(evaluated, tmp_path):
    model, _, _, curve = evaluated
    folder = save_result(curve, tmp_path / "run", extra={"model": "local:x", "command": "c"})
    back = load_result(folder)
    assert back.records == curve.records
    assert back.alphas == curve.alphas
    assert back.details["model"] == "local:x"
    assert back.details["provenance"] == curve.details["provenance"]
    for name, points in curve.details["points"].items():
        assert torch.equal(points, back.details["points"][name])
    content = json.loads((folder / "result.json").read_text())
    assert content["schema"] == 1
    assert content["name"] == "run"
    assert {"settings", "versions", "digests", "passes", "curve", "losses"} <= set(content)
    assert [row["name"] for row in content["losses"]][:2] == ["step:0", "step:0.01"]
    assert verify_result(folder, model).holds


def test_damaged_or_missing_results_are_refused(evaluated, tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a result folder"):
        load_result(tmp_path)
    folder = save_result(evaluated[3], tmp_path / "run")
    file = folder / "result.json"
    text = file.read_text()
    file.write_text(text[:-20])
    with pytest.raises(ValueError, match=r"result.json is damaged"):
        load_result(folder)
    file.write_text("[]")
    with pytest.raises(ValueError, match="expected an object, got list"):
        load_result(folder)
    file.write_text(json.dumps({**json.loads(text), "schema": 99}))
    with pytest.raises(ValueError, match="expected schema 1, got 99"):
        load_result(folder)
    file.write_text(text)
    points = folder / "adversarial.safetensors"
    points.write_bytes(points.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"adversarial.safetensors is damaged"):
        load_result(folder)


def tampered(curve: RobustnessCurve, kind: str, row: int, point) -> RobustnessCurve:
    points = {name: tensor.clone() for name, tensor in curve.details["points"].items()}
    points[kind][row] = point
    return replace(curve, details={**curve.details, "points": points})


def test_the_checker_sees_what_does_not_hold(evaluated):
    model, x, _, curve = evaluated
    rejected = curve.records.rejected_radius
    row = int(((rejected > 0) & rejected.isfinite()).nonzero()[0])
    cases = {
        "recorded as rejected, but answered": x[row],
        "beyond eps 0.1": x[row] + torch.where(x[row] < 0.5, 0.3, -0.3),
        r"pixels outside \[0, 1\]": x[row] - 2,
        "recorded": x[row] + 1e-3,
    }
    for text, point in cases.items():
        answer = verify_curve(model, tampered(curve, "rejected", row, point))
        assert not answer.holds
        assert any(re.search(text, problem) for problem in answer.problems), text


def test_the_checker_sees_mistakes_that_are_none(evaluated):
    model, x, _, curve = evaluated
    rows = (curve.records.outer_distance.isfinite() & (curve.records.outer_distance > 0)).nonzero()
    row = int(rows[0])
    answer = verify_curve(model, tampered(curve, "outer", row, x[row]))
    assert any("recorded as accepted and wrong, but it is" in p for p in answer.problems)
    other = SelectiveClassifier(Curved(outputs=4, seed=7), model.rule)
    assert any("clean answer" in p for p in verify_curve(other, curve).problems)


def test_verification_needs_points_and_a_model(evaluated, tmp_path):
    model, _, _, curve = evaluated
    bare = replace(curve, details={})
    with pytest.raises(ValueError, match="no adversarial inputs to check"):
        verify_curve(model, bare)
    folder = save_result(curve, tmp_path)
    with pytest.raises(ValueError, match="pass the model itself"):
        verify_result(folder)
    other = SelectiveClassifier(Curved(outputs=4, seed=7), model.rule)
    assert any("weights are not the ones" in p for p in verify_result(folder, other).problems)


def test_a_bundled_result_is_verified_from_its_address(tmp_path):
    from cpr_wrap import load, load_data

    data = load_data("mnist", "robust", num=2)
    model = load("bundled:mnist-compact-at", rule=Confidence(threshold=0.9))
    curve = robustness_curve(model, data.images, data.labels, 0.3, budget="quick")
    folder = save_result(curve, tmp_path, extra={"model": "bundled:mnist-compact-at"})
    answer = verify_result(folder)
    assert answer.holds, answer.problems


def test_an_estimate_scales_a_probe(evaluated):
    model, x, y, curve = evaluated
    cost = estimate_cost(model, x, y, 0.1, budget="quick", num=1000, probe=len(x))
    assert cost.passes_per_image == pytest.approx(curve.details["passes_total"]["per_image"])
    assert cost.passes == pytest.approx(1000 * cost.passes_per_image)
    assert (cost.images, cost.probed) == (1000, len(x))
    assert cost.seconds > 0
    assert estimate_cost(model, x, y, 0.1, budget="quick", probe=1).images == len(x)


def test_an_audit_passes_on_an_honest_evaluation(evaluated):
    model, x, y, _ = evaluated
    curve = robustness_curve(model, x, y, 0.1, budget="standard")
    checks = audit(model, x, y, 0.1, curve, images=3, black_box_images=3)
    failed = [check for check in checks if check.passed is False]
    # Linf Square needs images of two axes and gets 2 x 2 pixels; the rest is the usual thing.
    assert not failed, failed
    assert {row["name"] for row in as_rows(checks)} == {check.name for check in checks}
    assert len(checks) == 9


def test_an_audit_fails_where_points_are_made_up_or_attacks_were_left_out(evaluated):
    model, x, y, curve = evaluated
    broken = (curve.records.outer_distance > 0) & curve.records.outer_broken
    row = int(broken.nonzero()[0])
    checks = audit(model, x, y, 0.1, tampered(curve, "outer", row, x[row]), images=1)
    assert checks[0].passed is False
    assert "do not hold" in checks[0].detail

    class Nothing:
        name = "nothing"

        def stages(self, rule, eps):
            return ()

    lazy = robustness_curve(model, x, y, 0.1, budget=Nothing())
    verdicts = {c.name: c for c in audit(model, x, y, 0.1, lazy, images=4)}
    weak = [c for c in verdicts.values() if "the budget was too small" in c.detail]
    assert weak
    assert all(c.passed is False for c in weak)


def test_an_audit_fails_where_inner_attacks_were_too_weak(evaluated):
    model, x, y, _ = evaluated

    class Far:
        name = "far"

        def stages(self, rule, eps):
            return (
                Attack(objective=rule.inner[0], goal=Goal.REJECTED, iterations=20, step=1.0),
                *[s for s in Quick().stages(rule, eps) if "CHCMOA" in s.name],
            )

    module = importlib.import_module("cpr_wrap.evaluation.audit")
    few = module._Few(model, x, y, 0.1, "Linf", 0)
    for budget, expected in (("standard", True), (Far(), False)):
        curve = robustness_curve(model, x, y, 0.1, budget=budget)
        check = module._smaller_radii(few, curve)
        assert check.passed is expected, check


def test_an_audit_without_points_says_so(evaluated):
    model, x, y, curve = evaluated
    checks = audit(model, x, y, 0.1, replace(curve, details={}), images=1, black_box_images=1)
    assert checks[0].passed is None


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


def test_plants_that_random_points_find_prove_nothing(evaluated, monkeypatch):
    model, x, y, curve = evaluated
    for by_chance, expected in ((1, True), (3, None)):
        easy = Planted(planted=4, found=4, by_chance=by_chance)
        module = importlib.import_module("cpr_wrap.evaluation.audit")
        monkeypatch.setattr(module, "plant", lambda *_, easy=easy, **__: easy)
        check = audit(model, x, y, 0.1, curve, images=1, black_box_images=1)[-1]
        assert check.passed is expected
        assert ("too easy to tell" in check.detail) is (expected is None)


class Misleading(torch.nn.Module):
    """A network whose gradients point the wrong way."""

    def __init__(self, base):
        super().__init__()
        self.base, self.training = base, False

    def forward(self, x):
        return self.base(2 * x.detach() - x)


def test_planted_inputs_are_missed_where_gradients_mislead():
    honest = SelectiveClassifier(Curved(outputs=4, scale=4), AcceptAll())
    _, x, _ = make("cpr", count=12)
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
    assert answer.planted >= 4
    assert answer.found < 0.95 * answer.planted


def test_fingerprints_tell_objectives_apart_that_share_a_name():
    one = objective("X")(lambda view, y, target: (view.logits.sum(dim=1),))
    two = objective("X")(lambda view, y, target: (-view.logits.sum(dim=1),))
    same = objective("X")(lambda view, y, target: (view.logits.sum(dim=1),))
    assert one.fingerprint == same.fingerprint != two.fingerprint


def test_no_rule_no_inner_records():
    model, x, y = make("none")
    assert isinstance(model.rule, AcceptAll)
    curve = robustness_curve(model, x, y, 0.1, budget="quick")
    assert curve.details["theory"] is None
    assert all(p["rejected"] is None for p in curve.details["provenance"])


def test_risk_and_coverage_clean_and_under_attack():
    model, x, y = make("confidence")
    curve = robustness_curve(model, x, y, 0.15, budget="quick")
    found = risk_coverages(model, curve)
    broken = curve.records.outer_broken
    assert broken.any()
    # The labels are the network's own: no risk on clean images, and under attack every broken
    # image is wrong, so that answering everything risks exactly their share.
    assert float(found["clean"].aurc) == 0
    assert float(found["attacked"].selective_risks[-1]) == pytest.approx(
        float(broken.double().mean())
    )
    assert found["attacked"].augrc > found["clean"].augrc
    summary = curve.details["risk_coverage"]
    assert summary["attacked"]["aurc"] == found["attacked"].aurc
    assert robustness_curve(*make("none"), 0.1, budget="quick").details["risk_coverage"] is None
