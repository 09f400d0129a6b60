from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from cpr_wrap.metrics import PAPER_LOSSES, RobustnessCurve
from cpr_wrap.metrics.evidence import Points
from cpr_wrap.report.charts import radii_of
from cpr_wrap.report.gallery import Exhibit, Gallery, make_gallery
from cpr_wrap.report.html import LONGEST_SIDE, data_uri, flattened, report_html, write_report
from cpr_wrap.report.run import Run
from tests.report.making import (
    INF,
    full_curve,
    full_details,
    full_records,
    plain,
    some_points,
    stage,
)

VOID = {"img", "input", "link", "meta", "br", "wbr"}
EVIL = """</td></script><script>evil()</script><img src=x onerror='evil()'>"&"""


class Page(HTMLParser):
    """Elements with their attributes and texts; complains about elements left open."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"{tag} ends but was never opened"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())

    def all(self, tag, style=None):
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and (style is None or style in (attributes.get("class") or "").split())
        ]


@pytest.fixture(scope="module")
def one():
    return Page(report_html(full_curve()))


@pytest.fixture(scope="module")
def several():
    curves = [full_curve(), full_curve("TRADES+CPR", seed=1, weakness=1.3), plain(name="bare")]
    return Page(report_html(curves, "All of them"))


def test_everything_is_there(one):
    curve = full_curve()
    for heading in (
        "Robustness curve",
        "Total robust loss",
        "Clean inputs",
        "Smallest rejected radius",
        "Attacks",
        "Ablation",
        "Theory",
        "Audit",
        "Gallery",
        "Reproduction",
    ):
        assert heading in one.text
    for loss in PAPER_LOSSES:
        assert f"{curve.total_robust_loss(loss):.3f}" in one.text
    assert "cpr-wrap curve bundled:mnist-at --eps 0.3 --name AT+CPR" in one.text
    assert "3f" * 32 in one.text  # the weights' digest
    assert "99.34%" in one.text  # clean figures of the test set
    assert "failed : a black-box attack" in one.text.replace("failed:", "failed :")


def test_captions_are_honest(one):
    assert "an upper bound on the true one" in one.text
    assert "95% intervals over images, not over attacks" in one.text


def test_it_loads_nothing(one, several):
    for page in (one, several):
        for _, attributes in page.elements:
            for name in ("src", "href", "srcset", "action", "poster", "data"):
                target = attributes.get(name)
                assert target is None or target.startswith(("data:", "#"))
        assert len(page.all("script")) == 2  # our own, and the data of the read-out
        (policy,) = [m["content"] for m in page.all("meta") if "http-equiv" in m]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy


def test_the_policy_names_exactly_our_style_and_script():
    text = report_html(plain())
    for element in ("style", "script"):
        inside = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in text


def test_the_attack_table_adds_up():
    curve = full_curve()
    text = report_html(curve)
    section = text[text.index("<h3>Attacks") : text.index("<h3>Curve in numbers")]
    rows = re.findall(r'<th scope="row"[^>]*>([^<]*)</th>(.*?)</tr>', section)
    cells = {name: re.findall(r"<td[^>]*>([^<]*)</td>", row) for name, row in rows}
    broken = curve.records.first_broken_by()
    for name, count in broken.items():
        assert cells[name][0] == str(count)
    for name, count in curve.records.first_rejected_by().items():
        assert cells[name][1] == str(count)
    assert next(iter(cells)) == "clean"
    assert cells["HCMOA"][2] == "46,690"


def test_stages_of_one_name_are_one_row():
    stages = (stage("PDIA", 10, 5, 1.0), stage("PDIA", 1, 1, 1.0))
    section = report_html(plain(passes=stages))
    assert section.count(">PDIA</th>") == 1
    assert ">17</td>" in section


def test_several_runs_have_a_leaderboard(several):
    first, second = several.all("table", "leaderboard")
    assert first["class"] == second["class"] == "leaderboard sortable"
    heads = [h for h in several.all("th") if h.get("aria-sort")]
    assert len(heads) == 20  # two tables of ten columns: the bare run has no data to share
    assert {head["aria-sort"] for head in heads} == {"none"}
    assert len(several.all("details", "run")) == 3
    assert "All of them" in several.text


def test_a_single_run_has_none(one):
    assert not one.all("table", "leaderboard")


def test_runs_that_differ_carry_a_warning(several):
    assert "These runs differ in images, threat model, attacks or engine" in several.text
    alike = Page(report_html([full_curve("a"), full_curve("b", weakness=2)]))
    assert "Careful" not in alike.text


def test_the_best_is_bold_only_among_equals(several):
    assert not several.all("td", "best")
    alike = [full_curve("a", checks=None), full_curve("b", weakness=3, checks=None)]
    assert Page(report_html(alike)).all("td", "best")


def test_names_cannot_break_a_picture():
    (picture,) = Page(report_html(plain(name=EVIL))).all("svg", "chart")[:1]
    assert picture["aria-label"].startswith(f"Robustness with rejection over alpha: {EVIL} falls")


def test_bands_of_many_runs_are_left_out():
    def bands(count):
        return Page(report_html([plain(name=str(k)) for k in range(count)])).all("path", "band")

    assert len(bands(3)) == 3
    assert not bands(4)


def test_the_histogram_has_a_bar_for_each_bin_that_is_not_empty():
    run = Run.of(full_curve(count=200))
    radii = radii_of(run)
    bars = Page(report_html(run)).all("rect", "bar")
    heights = [float(bar["height"]) * radii.ticks[-1] for bar in bars]
    assert heights == pytest.approx([count for count in radii.found.bins if count], abs=1e-2)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_pictures_are_pngs_of_the_pixels(channels, mode):
    image = torch.rand(channels, 5, 7) * 1.2 - 0.1
    with Image.open(io.BytesIO(base64.b64decode(data_uri(image).split(",")[1]))) as picture:
        assert (picture.format, picture.mode, picture.size) == ("PNG", mode, (7, 5))
        levels = torch.from_numpy(np.array(picture)).reshape(5, 7, channels)
    expected = (image.clip(0, 1).double() * 255).round().byte()
    assert torch.equal(levels.permute(2, 0, 1), expected)


def test_large_pictures_are_shrunk():
    uri = data_uri(torch.full((3, 2 * LONGEST_SIDE, LONGEST_SIDE), 0.5))
    with Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) as picture:
        assert picture.size == (LONGEST_SIDE // 2, LONGEST_SIDE)
        assert picture.getcolors() == [(LONGEST_SIDE**2 // 2, (128, 128, 128))]


def test_a_bare_curve_is_enough():
    page = Page(report_html(plain()))
    for heading in ("Ablation", "Theory", "Audit", "Gallery"):
        assert heading not in page.text
    assert "The run has no recorded settings." in page.text


def test_a_curve_where_nothing_was_found():
    page = Page(report_html(plain(outer=[INF] * 3, rejected=[INF] * 3)))
    assert "100.0%" in page.text


def test_the_read_out_has_the_numbers_of_each_run():
    curves = [full_curve("a"), full_curve("b", seed=1)]
    text = report_html(curves)
    data = json.loads(re.search(r'id="readings-data">(.*?)</script>', text)[1])
    for curve, rows in zip(curves, data, strict=True):
        assert rows[50][0] == pytest.approx(curve.accuracy_at(0.5), abs=1e-4)


def _everywhere(value):
    """The same evidence with every text, and every key, replaced by an attack."""
    if isinstance(value, Points):
        return value
    if is_dataclass(value):
        changed = {f.name: _everywhere(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **changed | ({"norm": "Linf"} if "norm" in changed else {}))
    if isinstance(value, dict):
        kept = ("images", "accuracy_with_rejection")
        return {k if k in kept else f"{k}{EVIL}": _everywhere(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_everywhere(entry) for entry in value)
    return EVIL if isinstance(value, str) else value


def test_no_text_from_outside_becomes_markup():
    records = full_records(20)
    records = replace(
        records,
        outer_by=tuple(name and f"{name}{EVIL}" for name in records.outer_by),
        rejected_by=tuple(name and f"{name}{EVIL}" for name in records.rejected_by),
    )
    details = full_details(classes=("class",) * 10, points=some_points(records))
    curve = RobustnessCurve(records, **{k: _everywhere(v) for k, v in details.items()})
    for runs in ([curve], [curve, curve]):
        text = report_html(runs, title=EVIL)
        page = Page(text)
        assert len(page.all("script")) == 2
        assert {a["src"][:5] for a in page.all("img")} == {"data:"}
        assert "<script>evil" not in text
        assert EVIL in "".join(page.words)


def test_pictures_and_their_verdicts():
    exhibits = (
        Exhibit(
            index=7,
            label=1,
            clean_label=1,
            kind="mistake",
            attack="HCMOA",
            distance=0.1,
            predicted=2,
            moved=2,
            score=0.5,
            holds=True,
        ),
        Exhibit(
            index=8,
            label=3,
            clean_label=-1,
            kind="rejection",
            attack="clean",
            distance=0.0,
            predicted=3,
            moved=0,
            score=-0.5,
            holds=False,
        ),
    )
    images = torch.rand(2, 3, 8, 8)
    gallery = Gallery(exhibits=exhibits, clean=images, perturbed=images.flip(0), transformed=images)
    run = Run(curve=plain(classes=["a", "b", "c"]), name="x", gallery=gallery)
    page = Page(report_html(run))
    assert len(page.all("img")) == 8
    assert "Accepted as c, true class b, at T c, distance 0.1 (0.5 ε), HCMOA; image 7." in page.text
    # Class 3 has no name.
    assert "Rejected, true class 3, predicted 3, at T a, the clean image itself, clean" in page.text
    assert page.text.count("The model did not confirm this verdict.") == 1


def test_points_alone_make_a_gallery_without_t():
    page = Page(report_html(full_curve()))
    assert "T(perturbed)" not in page.text
    assert "Accepted wrongly" in page.text
    assert len(page.all("img")) == 3 * 12


def test_large_images_are_smooth_and_small_ones_are_not():
    def shown(size):
        records = full_records(8)
        points = some_points(records, torch.rand(8, 3, size, size))
        curve = RobustnessCurve(records, points=points)
        gallery = make_gallery(None, curve, 1)
        return Page(report_html(Run(curve=plain(), name="x", gallery=gallery))).all("img")

    assert all(image.get("class") == "pixels" for image in shown(32))
    assert all(image.get("class") is None for image in shown(65))


@pytest.mark.parametrize("shape", [(4, 6), (4, 2, 3, 3)])
def test_points_that_are_no_pictures_are_left_out(shape):
    pixels = torch.rand(shape)
    curve = plain(points=Points(clean=pixels, outer=pixels, rejected=pixels))
    assert "Gallery" not in Page(report_html(curve)).text


def test_checks_that_passed_failed_or_have_no_answer(one):
    assert [item["class"] for item in one.all("li") if item.get("class")] == [
        "passed",
        "failed",
        "no-answer",
    ]


def test_theory_says_why_it_does_not_apply(one):
    assert "Theorem 2 does not apply: the base network is wrong on" in one.text
    assert "Thm. 1" in one.text
    assert "Thm. 2" not in one.text


def test_theory_says_what_it_takes_for_granted():
    curve = full_curve()
    right = curve.records.base_label == curve.records.label
    points = Points(**{name: t[right] for name, t in vars(curve.points).items()})
    kept = replace(curve, records=curve.records.subset(right), points=points)
    page = Page(report_html(kept))
    assert "Theorem 2 applies, if these hold: regions at least radius deep." in page.text
    assert page.all("path", "theorem2")


def test_theory_is_not_drawn_where_dashes_tell_runs_apart():
    curve = full_curve()
    for count, drawn in ((8, True), (9, False)):
        page = Page(report_html([curve] * count))
        assert bool(page.all("path", "theorem1")) is drawn
        assert ("In the same color" in page.text) is drawn


def test_settings_are_flat_and_readable():
    run = Run.of(full_curve(eps=8 / 255))
    pairs = dict(flattened(run))
    assert pairs["model"] == "bundled:mnist-at"
    assert pairs["eps"] == "8/255"
    assert pairs["rule.can_reject"] == "yes"
    assert pairs["compile"] == "no"
    assert pairs["dtype"] == "–"
    assert pairs["rule.settings.radius"] == "0.1"
    assert pairs["stages"].startswith("halving, HCMOA")
    assert pairs["provenance.versions.torch"] == "2.15.0"
    assert pairs["calibration.reject_rate"] == "0.01"


def test_the_same_runs_give_the_same_file():
    assert report_html(full_curve()) == report_html(full_curve())


def test_where_the_file_goes(tmp_path):
    assert write_report(plain(), tmp_path) == tmp_path / "report.html"
    assert write_report(plain(), tmp_path / "new") == tmp_path / "new" / "report.html"
    path = write_report([plain()], tmp_path / "a" / "b.html", title="T")
    assert path == tmp_path / "a" / "b.html"
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_no_runs_no_report(tmp_path):
    with pytest.raises(ValueError, match="expected at least one run, got none"):
        write_report([], tmp_path)
