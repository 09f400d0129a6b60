"""Result folders, the independent checker, the estimate and the audit."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch

from cpr_wrap.evaluation import (
    estimate_cost,
    load_result,
    risk_coverages,
    robustness_curve,
    save_result,
    verify_curve,
    verify_result,
)
from cpr_wrap.metrics import About, Check, Points, RobustnessCurve
from cpr_wrap.rules import AcceptAll, Confidence
from cpr_wrap.selective import SelectiveClassifier
from tests.evaluation.test_curve import make
from tests.toys import Curved


@pytest.fixture(scope="module")
def evaluated():
    model, x, y = make("cpr")
    return model, x, y, robustness_curve(model, x, y, 0.1, budget="quick")


def test_a_saved_result_comes_back_whole(evaluated, tmp_path):
    model, _, _, curve = evaluated
    told = replace(
        curve,
        about=About(name="run", model="local:x", command="c", classes=("a", "b")),
        checks=(Check(name="it holds", passed=None, detail="not asked"),),
    )
    folder = save_result(told, tmp_path / "run")
    back = load_result(folder)
    assert back.records == curve.records
    for name in ("alphas", "about", "origins", "passes", "settings", "provenance", "checks"):
        assert getattr(back, name) == getattr(told, name), name
    for name, points in vars(curve.points).items():
        assert torch.equal(points, getattr(back.points, name))
    content = json.loads((folder / "result.json").read_text())
    assert content["schema"] == 2
    losses = content["figures"]["losses"]
    assert [row["name"] for row in losses][:2] == ["step:0", "step:0.01"]
    assert load_result(folder, points=False).points is None
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
    with pytest.raises(ValueError, match="expected schema 2, got 99"):
        load_result(folder)
    old = {"schema": 1, "versions": {"cpr_wrap": "0.1.0"}}
    file.write_text(json.dumps(old))
    with pytest.raises(ValueError, match=r"got 1, written by cpr-wrap 0\.1\.0; evaluate again"):
        load_result(folder)
    for versions, told in (({"cpr_wrap": "0.9"}, "0.9"), ("0.9", "of another version")):
        later = {"schema": 3, "provenance": {"versions": versions}}
        file.write_text(json.dumps(later))
        with pytest.raises(ValueError, match=f"got 3, written by cpr-wrap {told}; evaluate"):
            load_result(folder)
    file.write_text(json.dumps({**json.loads(text), "images": "many"}))
    with pytest.raises(ValueError, match=r"result.json is damaged: images: "):
        load_result(folder)
    content = json.loads(text)
    content["figures"]["curve"] = [{**row, "alpha": 2} for row in content["figures"]["curve"][:1]]
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"alphas: expected shares .* got \(2.0,\)"):
        load_result(folder)
    file.write_text(text)
    points = folder / "adversarial.safetensors"
    kept = points.read_bytes()
    points.write_bytes(kept[:100])
    with pytest.raises(ValueError, match=r"adversarial.safetensors is not the file that"):
        load_result(folder)
    points.write_bytes(kept)
    lines = (folder / "per_image.jsonl").read_text().splitlines()
    (folder / "per_image.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(ValueError, match=r"per_image.jsonl is not the file .* mixes two runs"):
        load_result(folder)


def tampered(curve: RobustnessCurve, kind: str, row: int, point) -> RobustnessCurve:
    points = {name: tensor.clone() for name, tensor in vars(curve.points).items()}
    points[kind][row] = point
    return replace(curve, points=Points(**points))


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
    bare = replace(curve, points=None)
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
    about = About(model="bundled:mnist-compact-at")
    folder = save_result(replace(curve, about=about), tmp_path)
    answer = verify_result(folder)
    assert answer.holds, answer.problems


def test_an_estimate_scales_a_probe(evaluated):
    model, x, y, curve = evaluated
    cost = estimate_cost(model, x, y, 0.1, budget="quick", num=1000, probe=len(x))
    assert cost.passes_per_image == pytest.approx(curve.passes_per_image)
    assert cost.passes == pytest.approx(1000 * cost.passes_per_image)
    assert (cost.images, cost.probed) == (1000, len(x))
    assert cost.seconds > 0
    assert estimate_cost(model, x, y, 0.1, budget="quick", probe=1).images == len(x)


def test_an_estimate_includes_the_audit(monkeypatch):
    model, x, y = make("cpr")

    def audit(model, curve):
        model(x[:1])  # so many passes as a verdict costs
        return ()

    monkeypatch.setattr("cpr_wrap.evaluation.sweep.audit", audit)
    plain = estimate_cost(model, x, y, 0.1, budget="quick", probe=2)
    whole = estimate_cost(model, x, y, 0.1, budget="quick", probe=2, audited=True)
    assert plain.audit_passes == 0
    assert whole.audit_passes == model.rule.cost.total
    assert whole.passes == plain.passes + whole.audit_passes


def test_no_rule_no_inner_records():
    model, x, y = make("none")
    assert isinstance(model.rule, AcceptAll)
    curve = robustness_curve(model, x, y, 0.1, budget="quick")
    assert curve.theorems() is None
    assert all(origins.rejected is None for origins in curve.origins)


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
    assert curve.coverage.attacked_aurc == found["attacked"].aurc
    assert robustness_curve(*make("none"), 0.1, budget="quick").coverage is None
    with pytest.raises(ValueError, match="expected a curve with its points"):
        risk_coverages(model, replace(curve, points=None))
