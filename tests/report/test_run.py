from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpr_wrap.evaluation import save_result
from cpr_wrap.metrics import RobustnessCurve, theorems_of
from cpr_wrap.report.gallery import make_gallery, save_gallery
from cpr_wrap.report.run import Run, as_run, as_runs, labels
from tests.metrics.making import make
from tests.report.making import INF, RADIUS, full_curve, plain, rule, settings, stage


def test_a_curve_brings_its_name_along():
    assert Run.of(full_curve("AT+CPR")).name == "AT+CPR"
    assert Run.of(full_curve("AT+CPR"), "other").name == "other"
    assert Run.of(plain(model="timm:x")).name == "timm:x"
    assert Run.of(plain()).name == "run"


def test_a_folder_is_read_with_its_gallery(tmp_path):
    curve = full_curve("AT+CPR", count=20)
    folder = save_result(curve, tmp_path / "at")
    assert Run.load(folder).gallery is None
    save_gallery(make_gallery(None, curve, 2), folder)
    run = as_run(str(folder))
    assert run.curve.records == curve.records
    assert (run.name, len(run.gallery)) == ("AT+CPR", 2)
    assert torch.equal(run.curve.points.outer, curve.points.outer)


def test_a_folder_without_a_name_is_called_after_itself(tmp_path):
    folder = save_result(plain(), tmp_path / "some-run")
    assert Run.load(folder).name == "some-run"


def test_one_or_several():
    curve = plain()
    assert len(as_runs(curve)) == len(as_runs([curve])) == 1
    assert len(as_runs((curve, Run.of(curve)))) == 2


def test_mistaken_calls():
    with pytest.raises(TypeError, match="expected a Run, a RobustnessCurve or a result folder"):
        as_run(3)
    with pytest.raises(ValueError, match="expected at least one run, got none"):
        as_runs([])
    with pytest.raises(FileNotFoundError, match="expected a result folder"):
        as_run(Path("does-not-exist"))


def test_passes_are_counted_an_image():
    stages = (stage("PDIA", 20, 8, 1.0), stage("LCIA", 10, 2, 1.0))
    assert plain(passes=stages).passes_per_image == 10


def test_labels_leave_out_what_all_names_share():
    def named(*names):
        return labels([Run.of(full_curve(name)) for name in names])

    assert named("at+cpr+0.1+quick", "at+none+0.1+quick") == ["cpr", "none"]
    assert named("at+cpr+0.1", "vit+none+0.1") == ["at+cpr", "vit+none"]
    assert named("at+cpr", "at") == ["at+cpr", "at"]
    assert named("at+cpr") == ["at+cpr"]


def test_labels_tell_runs_apart():
    seen, unseen = full_curve("AT"), full_curve("AT", eps=0.4)
    other = full_curve("AT", dataset="svhn")
    assert labels(as_runs([seen, full_curve("CR")])) == ["AT", "CR"]
    assert labels(as_runs([seen, unseen])) == ["AT · mnist · Linf 0.3", "AT · mnist · Linf 0.4"]
    assert labels(as_runs([seen, other])) == ["AT · mnist", "AT · svhn"]
    assert labels(as_runs([plain(), plain()])) == ["run · Linf 0.2 #1", "run · Linf 0.2 #2"]


def _with_boundary(outer, rejected, boundary, **changes):
    records = make(
        outer, rejected, eps=0.3, boundary_distance=torch.tensor(boundary, dtype=torch.float64)
    )
    return RobustnessCurve(records, settings=settings(rule=rule(**changes)))


def test_theorems_are_those_of_the_records():
    curve = full_curve()
    for ours, theirs in zip(curve.theorems(), theorems_of(curve.records, RADIUS), strict=True):
        assert (ours.applicable, ours.why) == (theirs.applicable, theirs.why)


def test_inner_errors_never_exceed_the_bound():
    curve = full_curve(weakness=1.5)
    bound = curve.theorems()[0]
    whole = ~curve.records.outer_broken
    within = RobustnessCurve(curve.records.subset(whole))
    alphas = torch.linspace(0, 1, 50, dtype=torch.float64)
    counted = within.error_at(alphas) * whole.sum()
    assert bool((counted <= bound.error_at(alphas) * len(whole) + 1e-9).all())


def test_theorems_need_distances_in_the_rules_norm():
    assert _with_boundary([INF], [INF], [INF]).theorems() is not None
    assert _with_boundary([INF], [INF], [INF], norm="L2").theorems() is None
    assert _with_boundary([INF], [INF], [INF], rejects_near_boundary=False).theorems() is None
    curve = full_curve()
    bare = replace(curve, records=replace(curve.records, boundary_distance=None))
    assert bare.theorems() is None
