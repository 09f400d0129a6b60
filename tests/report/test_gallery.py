from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from cpr_wrap import AcceptAll, CPRWrapper, SelectiveClassifier
from cpr_wrap.metrics import Records, RobustnessCurve
from cpr_wrap.metrics.evidence import Points
from cpr_wrap.report.gallery import Gallery, load_gallery, make_gallery, save_gallery
from tests.report.making import INF, plain, some_points
from tests.toys import Curved, pixels

EPS = 0.4


def model():
    return CPRWrapper(Curved(), radius=0.03, steps=3, step_size=0.01)


def searched(classifier, count=30):
    """A curve whose points were found by trying, so that every verdict is the model's own."""
    x = pixels(count)
    y = classifier(x).predicted
    random = torch.Generator().manual_seed(1)
    rows, points = [], {"clean": x, "outer": x.clone(), "rejected": x.clone()}
    for row in range(count):
        step = (torch.rand(200, 1, 2, 2, generator=random, dtype=torch.float64) * 2 - 1) * EPS
        tries = torch.cat([x[row : row + 1], (x[row] + step).clip(0, 1)])
        labels = classifier.predict(tries)
        distance = (tries - x[row]).flatten(1).abs().amax(dim=1)
        entry = {"index": row, "label": int(y[row]), "clean_label": int(labels[0])}
        kinds = {"outer": (labels != -1) & (labels != y[row]), "rejected": labels == -1}
        for kind, hit in kinds.items():
            place = int(torch.where(hit, distance, INF).argmin())
            found = bool(hit.any())
            name = "" if not found else "clean" if place == 0 else "tries"
            entry[f"{kind}_by"] = name
            entry["outer_distance" if kind == "outer" else "rejected_radius"] = (
                float(distance[place]) if found else None
            )
            if found:
                points[kind][row] = tries[place]
        entry["outer_broken"] = entry["outer_distance"] is not None
        rows.append(entry)
    records = Records.from_rows(rows, eps=EPS, norm="Linf")
    return RobustnessCurve(records, points=Points(**points))


@pytest.fixture(scope="module")
def curve():
    return searched(model())


def test_the_model_confirms_what_was_recorded(curve):
    gallery = make_gallery(model(), curve, 8)
    assert len(gallery) == 8
    assert {exhibit.kind for exhibit in gallery.exhibits} == {"mistake", "rejection"}
    for exhibit in gallery.exhibits:
        assert exhibit.holds
        # CPR rejects exactly where the class at T differs.
        assert (exhibit.moved != exhibit.predicted) == (exhibit.kind == "rejection")
        assert (exhibit.score >= 0) == (exhibit.kind == "mistake")
        if exhibit.kind == "mistake":
            assert exhibit.predicted != exhibit.label
    moved = (gallery.transformed - gallery.perturbed).abs().amax()
    assert 0 < moved <= 0.03 + 1e-9


def test_a_verdict_that_does_not_hold_is_marked(curve):
    clean = curve.points.clean
    tampered = replace(curve, points=Points(clean=clean, outer=clean, rejected=clean))
    exhibits = make_gallery(model(), tampered, 8).exhibits
    assert not any(exhibit.holds for exhibit in exhibits if exhibit.distance > 0)


def test_points_are_spread_from_the_nearest_to_the_farthest():
    radii = [0.01 * k for k in range(1, 13)]
    found = plain(outer=[INF] * 12, rejected=radii, eps=0.2)
    whole = replace(found, points=some_points(found.records))
    exhibits = make_gallery(None, whole, 4).exhibits
    distances = [exhibit.distance for exhibit in exhibits]
    assert distances == sorted(distances)
    assert (distances[0], distances[-1]) == (radii[0], radii[-1])


def test_mistakes_and_rejections_share_the_room_and_clean_errors_fill_it():
    outer = [0.1] * 6 + [INF] * 6 + [0.0, INF]
    rejected = [INF] * 6 + [0.1] * 6 + [INF, 0.0]
    found = plain(outer, rejected)
    whole = replace(found, points=some_points(found.records))

    def kinds(count):
        exhibits = make_gallery(None, whole, count).exhibits
        return [(exhibit.kind, exhibit.attack) for exhibit in exhibits]

    assert kinds(4) == [("mistake", "HCMOA")] * 2 + [("rejection", "PDIA")] * 2
    assert kinds(14)[12:] == [("rejection", "clean"), ("mistake", "clean")]
    assert len(kinds(100)) == 14


def test_without_a_model_it_tells_what_the_records_tell(curve):
    gallery = make_gallery(None, curve, 3)
    assert gallery.transformed is None
    assert all(e.predicted is e.moved is e.holds is None for e in gallery.exhibits)


def test_a_rule_without_t_has_no_shadow():
    plain_model = SelectiveClassifier(Curved(), AcceptAll())
    gallery = make_gallery(plain_model, searched(plain_model, 10), 3)
    assert gallery.transformed is None
    assert all(exhibit.holds and exhibit.moved is None for exhibit in gallery.exhibits)


def test_nothing_given_is_changed(curve):
    classifier = model()
    before = {name: t.clone() for name, t in vars(curve.points).items()}
    with torch.inference_mode():
        make_gallery(classifier, curve, 4)
    assert all(p.grad is None and p.requires_grad for p in classifier.parameters())
    for name, tensor in vars(curve.points).items():
        assert torch.equal(tensor, before[name])


def test_it_is_read_back_as_written(tmp_path, curve):
    gallery = make_gallery(model(), curve, 5)
    save_gallery(gallery, tmp_path / "new")
    again = load_gallery(tmp_path / "new")
    assert again.exhibits == gallery.exhibits
    for name in ("clean", "perturbed", "transformed"):
        assert torch.equal(getattr(again, name), getattr(gallery, name))


def test_a_gallery_may_be_empty(tmp_path):
    found = plain(outer=[INF], rejected=[INF])
    whole = replace(found, points=some_points(found.records))
    save_gallery(make_gallery(model(), whole), tmp_path)
    assert len(load_gallery(tmp_path)) == 0


def test_a_folder_without_a_gallery(tmp_path):
    assert load_gallery(tmp_path) is None


def test_a_gallery_of_another_version_is_refused(tmp_path, curve):
    save_gallery(make_gallery(None, curve, 1), tmp_path)
    (tmp_path / "gallery.json").write_text(json.dumps({"schema": 99, "exhibits": []}))
    with pytest.raises(ValueError, match="expected schema 1, got 99"):
        load_gallery(tmp_path)


def test_mistaken_calls(curve):
    with pytest.raises(ValueError, match="count: expected at least 1 image, got 0"):
        make_gallery(None, curve, 0)
    with pytest.raises(ValueError, match="expected a curve with points"):
        make_gallery(None, plain())
    with pytest.raises(ValueError, match=r"clean: expected images \(M, C, H, W\)"):
        Gallery(exhibits=(), clean=torch.zeros(0, 2, 4, 4), perturbed=torch.zeros(0, 1, 4, 4))
    with pytest.raises(ValueError, match="perturbed: expected 0 images, one per exhibit, got 1"):
        Gallery(exhibits=(), clean=torch.zeros(0, 1, 4, 4), perturbed=torch.zeros(1, 1, 4, 4))
