"""Points from elsewhere, and runs that are joined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cpr_wrap.evaluation import (
    load_result,
    merge_results,
    robustness_curve,
    save_result,
    verify_curve,
)
from cpr_wrap.metrics import About
from tests.engine.test_judge import Nothing
from tests.evaluation.test_curve import make

EPS = 0.15


@pytest.fixture(scope="module")
def runs():
    model, x, y = make("cpr")
    strong = robustness_curve(model, x, y, EPS, budget="quick")
    bare = robustness_curve(model, x, y, EPS, budget=Nothing())
    return model, x, y, strong, bare


def test_points_in_every_form_are_judged_like_any_proposal(runs, tmp_path):
    model, x, y, strong, bare = runs
    found = strong.records.outer_broken & (strong.records.outer_distance > 0)
    index, points = strong.records.index[found], strong.points.outer[found]
    save_file({"index": index, "points": points.float()}, tmp_path / "p.safetensors")
    np.savez(tmp_path / "p.npz", index=index.numpy(), points=points.numpy())
    folder = save_result(strong, tmp_path / "run")
    assert found.any()
    for given in ((index, points), strong, folder, tmp_path / "p.npz", tmp_path / "p.safetensors"):
        curve = robustness_curve(model, x, y, EPS, budget=Nothing(), points=given)
        assert torch.equal(curve.records.outer_broken, strong.records.outer_broken)
        assert verify_curve(model, curve).holds
        assert "given points" in curve.records.outer_by
    assert not (bare.records.outer_broken & found).any()


def test_points_that_hold_nothing_change_nothing(runs):
    model, x, y, _, bare = runs
    index = torch.arange(len(x))
    curve = robustness_curve(model, x, y, EPS, budget=Nothing(), points=(index, x))
    assert curve.records == bare.records
    with pytest.warns(UserWarning, match=f"points: {len(x)} of {len(x)} belong to no image"):
        beyond = robustness_curve(model, x, y, EPS, budget=Nothing(), points=(index + 1000, 1 - x))
    assert beyond.records == bare.records
    assert any("belong to no image" in note for note in beyond.provenance.notes)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ((torch.zeros(2), torch.zeros(2, 1)), ValueError, "points: expected whole image numbers"),
        ((torch.arange(2), torch.zeros(3, 1)), ValueError, "expected one image number per point"),
        ((torch.arange(1), torch.full((1, 1), 3.0)), ValueError, r"points: expected pixels in"),
        (
            (torch.arange(1), torch.zeros(1, 9)),
            ValueError,
            "points: expected points of the images' shape",
        ),
        ([1, 2, 3], TypeError, "points: expected image numbers and points, a curve"),
        ("nowhere.npz", FileNotFoundError, "points: nowhere.npz does not exist"),
        ("points.txt", ValueError, r"expected a .npz or .safetensors file"),
        ("text.npz", ValueError, "points: text.npz is damaged, or holds something else"),
        ("bad.safetensors", ValueError, "points: bad.safetensors is damaged"),
        ("words.npz", ValueError, "points: words.npz is damaged, or holds something else"),
        ("other.npz", ValueError, "expected arrays 'index' and 'points' in other.npz, got images"),
    ],
)
def test_points_that_cannot_be_read_are_refused(runs, given, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("points.txt", "text.npz", "bad.safetensors"):
        (tmp_path / name).write_text("no numbers")
    np.savez(tmp_path / "words.npz", index=np.array(["first"]), points=np.zeros((1, 4)))
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    model, x, y, strong, _ = runs
    with pytest.raises(error, match=text):
        robustness_curve(model, x, y, EPS, budget=Nothing(), points=given)
    with pytest.raises(ValueError, match="was saved without its points"):
        robustness_curve(model, x, y, EPS, points=replace(strong, points=None))


def test_bytes_are_pixels(runs):
    model, x, y, _, _ = runs
    points = (torch.arange(len(x)), (255 * x).to(torch.uint8))
    robustness_curve(model, x, y, EPS, budget=Nothing(), points=points)


def test_a_merged_run_keeps_the_worst_of_each_image(runs, tmp_path):
    model, x, y, strong, bare = runs
    other = robustness_curve(model, x, y, EPS, budget="quick", seed=3)
    named = [replace(c, about=About(name=n)) for c, n in ((strong, "a"), (other, "b"), (bare, "c"))]
    merged = merge_results(named)
    for field in ("outer_distance", "rejected_radius", "boundary_distance"):
        table = torch.stack([getattr(curve.records, field) for curve in named])
        expected = table.amin(dim=0)
        if field == "boundary_distance":
            expected = torch.minimum(expected, merged.records.outer_distance)
        assert torch.equal(getattr(merged.records, field), expected)
    assert verify_curve(model, merged).holds
    assert merged.provenance.merged == ("a", "b", "c")
    sources = {o.run for origins in merged.origins for o in (origins.outer, origins.rejected) if o}
    assert sources <= {"a", "b", "c"}
    folder = save_result(merged, tmp_path / "both")
    assert load_result(folder).records == merged.records


def test_a_smaller_eps_hands_its_points_on(runs):
    model, x, y, strong, _ = runs
    lazy = robustness_curve(model, x, y, 0.3, budget=Nothing())
    merged = merge_results([lazy, strong])
    assert merged.eps == 0.3
    assert torch.equal(merged.records.outer_broken, strong.records.outer_broken)
    assert verify_curve(model, merged).holds
    back = merge_results([lazy, strong], eps=0.05)
    assert (back.records.outer_distance[back.records.outer_broken] <= 0.05).all()


def test_a_merged_run_measures_its_origins_in_its_own_eps(runs):
    model, x, y, strong, _ = runs
    lazy = robustness_curve(model, x, y, 2 * EPS, budget=Nothing())
    merged = merge_results([lazy, strong])
    row = int((strong.records.outer_broken & (strong.records.outer_distance > 0)).int().argmax())
    before, after = strong.origins[row].outer, merged.origins[row].outer
    assert after.alpha == pytest.approx(before.alpha / 2)


def test_a_merged_run_has_the_deepest_mistakes_of_those_within_its_eps(runs):
    _, _, _, strong, bare = runs
    records = [
        replace(run.records, depth=torch.full_like(run.records.rejected_radius, depth))
        for run, depth in ((bare, 0.1), (strong, 0.2))
    ]
    curves = [replace(run, records=r) for run, r in zip((bare, strong), records, strict=True)]
    assert (merge_results(curves).records.depth == 0.2).all()
    assert merge_results(curves, eps=EPS / 2).records.depth is None


def test_what_is_not_the_same_is_not_merged(runs):
    model, x, y, strong, _ = runs
    tilted = robustness_curve(model, x * 0.9, y, EPS, budget=Nothing())
    with pytest.raises(ValueError, match="cannot merge run 1 and run 2: they differ in images"):
        merge_results([strong, tilted])
    stricter = model.with_rule(replace(model.rule, radius=0.02))
    with pytest.raises(ValueError, match="differ in rule"):
        merge_results([strong, robustness_curve(stricter, x, y, EPS, budget=Nothing())])
    other, _, _ = make("cpr", seed=1)
    with pytest.raises(ValueError, match="differ in model weights"):
        merge_results([strong, robustness_curve(other, x, y, EPS, budget=Nothing())])
    with pytest.raises(ValueError, match="differ in norm"):
        merge_results([strong, robustness_curve(model, x, y, EPS, budget=Nothing(), norm="L2")])
    with pytest.raises(ValueError, match="expected at least two runs"):
        merge_results([strong])
    with pytest.raises(ValueError, match="expected a run with points"):
        merge_results([strong, replace(strong, points=None)])
