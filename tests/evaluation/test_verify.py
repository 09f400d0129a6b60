"""Edits of a result folder: what `verify` must not pass, sealed again by the editor or not."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from cpr_wrap._files import digest
from cpr_wrap.evaluation import load_result, robustness_curve, save_result, verify_result
from cpr_wrap.evaluation.result import PER_IMAGE, POINTS, RESULT, seal_of
from cpr_wrap.metrics import AblationRow, About, CalibrationFacts, Check
from tests.budgets import Dark, Little
from tests.evaluation.test_curve import make


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    model, x, y = make("cpr")
    curve = robustness_curve(model, x, y, 0.1, budget="quick")
    numbers = tuple(curve.records.index.tolist())
    told = replace(
        curve,
        about=About(name="run", model="local:x", clean_test={"accuracy": 0.5}),
        checks=(Check(name="it holds", passed=False, detail="it does not"),),
        provenance=replace(curve.provenance, notes=("a note",)),
        ablation=(
            AblationRow(
                attack="a",
                goal="rejected",
                alpha=1.0,
                robustness=0.5,
                lost=numbers[:4],
                found=2,
                passes_per_image=9.0,
            ),
        ),
        calibration=CalibrationFacts(
            before={"name": "none"},
            after=curve.settings.rule.config,
            reject_rate=0.1,
            measured_rate=0.1,
            low=0.0,
            high=0.5,
            num_rejected=1,
            num_correct=10,
            num_images=10,
            overall_rate=0.1,
            reached=True,
        ),
    )
    return model, save_result(told, tmp_path_factory.mktemp("run") / "run")


class Edited:
    """A result folder's content, to be changed and written back."""

    def __init__(self, folder):
        self.folder = folder
        self.result = json.loads((folder / RESULT).read_text())
        self.rows = [json.loads(line) for line in (folder / PER_IMAGE).read_text().splitlines()]
        self.points = load_file(folder / POINTS)

    def write(self, *, sealed):
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        (self.folder / PER_IMAGE).write_text(text)
        save_file(self.points, self.folder / POINTS)
        if sealed:
            for name in (PER_IMAGE, POINTS):
                self.result["files"][name] = digest((self.folder / name).read_bytes())
            self.result["seal"] = seal_of(self.result)
        (self.folder / RESULT).write_text(json.dumps(self.result))

    def broken(self):
        return [n for n, row in enumerate(self.rows) if (row["outer_distance"] or 0) > 0]

    def keep(self, rows):
        self.rows = [self.rows[row] for row in rows]
        self.points = {name: held[rows].clone() for name, held in self.points.items()}
        self.result["images"] = len(rows)


def put(*path, value):
    """An edit of one entry of `result.json`."""

    def change(edited):
        place = edited.result
        for name in path[:-1]:
            place = place[name]
        assert place[path[-1]] != value
        place[path[-1]] = value

    return change


def forget(kind):
    """Records of one kind are taken away; their points stay."""

    def change(edited):
        distance = {"outer": "outer_distance", "rejected": "rejected_radius"}[kind]
        for row in edited.rows:
            if (row[distance] or 0) > 0:
                row.update({distance: None, f"{kind}_by": ""})
                if kind == "outer":
                    row["outer_broken"] = False

    return change


def first_row(**entries):
    """An edit of the first row that has an accepted mistake."""

    def change(edited):
        row = edited.rows[edited.broken()[0]]
        for name, value in entries.items():
            row[name] = value(row[name])

    return change


def without_broken(edited):
    broken = edited.broken()
    edited.keep([row for row in range(len(edited.rows)) if row not in broken])


def other_images(edited):
    edited.points["clean"] = 1 - edited.points["clean"]


def zero_curve(edited):
    for row in edited.result["figures"]["curve"]:
        row.update(error=0.0, error_low=0.0, error_high=0.0, accuracy=1.0)


def zero_losses(edited):
    for row in edited.result["figures"]["losses"]:
        row.update(value=0.0, low=0.0, high=0.0, trapezoid=0.0)


def larger_eps(edited):
    edited.result["eps"] = edited.result["settings"]["eps"] = 0.2


def tensor(kind, change):
    def edit(edited):
        row = edited.broken()[0]
        edited.points[kind][row] = change(edited.points[kind][row], edited.points["clean"][row])

    return edit


def swap_rows(edited):
    edited.rows[0], edited.rows[1] = edited.rows[1], edited.rows[0]


# What a careful editor, who makes all digests anew, is caught by.
SEALED = {
    "mistakes forgotten": (forget("outer"), "it holds at distance .*, but the record says none"),
    "rejections forgotten": (forget("rejected"), "but the record says none"),
    "broken images removed": (without_broken, "images, labels or numbers are not the ones"),
    "one image removed": (lambda e: e.keep(list(range(7))), "are not the ones that were evaluated"),
    "no point for any row": (lambda e: e.points.update(outer=e.points["outer"][:3]), "8 records"),
    "all images replaced": (other_images, "images, labels or numbers are not the ones"),
    "rows in another order": (swap_rows, "images, labels or numbers are not the ones"),
    "another number": (first_row(index=lambda n: n + 100), "images, labels or numbers"),
    "another label": (first_row(label=lambda n: (n + 1) % 4), "outer_distance is 0 exactly where"),
    "another clean answer": (first_row(clean_label=lambda n: (n + 1) % 4), "exactly where"),
    "another distance": (
        first_row(outer_distance=lambda d: d / 2),
        "outer point: distance .*, recorded",
    ),
    "a boundary beyond a mistake": (
        first_row(boundary_distance=lambda d: d + 0.2),
        "the boundary is recorded at",
    ),
    "an attack nobody ran": (first_row(outer_by=lambda _: "magic"), "'magic' found points"),
    "a mistake put back": (tensor("outer", lambda _, x: x.clone()), "but it is right"),
    "a point beyond eps": (tensor("outer", lambda z, x: 1 - x), "beyond eps"),
    "pixels out of range": (tensor("outer", lambda z, x: z - 2), r"pixels outside \[0, 1\]"),
    "no numbers": (tensor("outer", lambda z, x: z * torch.nan), r"pixels outside \[0, 1\]"),
    "a larger eps": (put("eps", value=0.2), "eps in the settings: recorded 0.1"),
    "a larger eps everywhere": (larger_eps, "figures.curve: not what the records give"),
    "a smaller eps": (put("eps", value=0.001), "expected a point within eps"),
    "another norm": (put("norm", value="L2"), "norm in the settings"),
    "more images": (put("images", value=80), "number of images: recorded 80"),
    "a flat curve": (zero_curve, "figures.curve: not what the records give"),
    "no losses": (zero_losses, "figures.losses: not what the records give"),
    "clean figures": (put("figures", "clean", value={"accuracy": 1.0}), "figures.clean"),
    "fewer passes": (put("figures", "passes_per_image", value=1.0), "figures.passes_per_image"),
    "another budget": (put("settings", "budget", value="standard"), "of its .* stages were not"),
    "another rule": (
        put("settings", "rule", "settings", "radius", value=0.02),
        "the model's rule is cpr .*radius 0.03",
    ),
    "another model": (put("provenance", "weights", value="0" * 64), "weights are not the ones"),
    "other data": (put("provenance", "data", value="0" * 64), "are not the ones that were"),
    "another reach": (put("settings", "rule", "reach", value=0.5), "the model's rule is"),
    "a cheaper rule": (put("settings", "rule", "backwards", value=0), "the model's rule is"),
    "another answer of the network": (first_row(base_label=lambda n: (n + 1) % 4), "answers"),
    "a better ablation": (put("ablation", 0, "robustness", value=0.99), "not what its lost"),
    "another rate": (put("calibration", "measured_rate", value=0.0), "not what its counts give"),
    "another calibrated rule": (
        put("calibration", "after", "radius", value=0.01),
        "another rule than the one that was evaluated",
    ),
    "another schema": (put("schema", value=1), "expected schema 2, got 1"),
    "a field too much": (put("provenance", "seconds", value="long"), "is damaged"),
}
# What only the seal tells.
UNSEALED = {
    "a passed check": put("checks", 0, "passed", value=True),
    "no checks": put("checks", value=None),
    "no notes": put("provenance", "notes", value=[]),
    "another seed": put("settings", "seed", value=7),
    "a better test set": put("about", "clean_test", value={"accuracy": 1.0}),
    "an older engine": put("provenance", "engine", value=1),
    "another command": put("about", "command", value="cpr-wrap curve"),
}


def test_areas_under_risk_are_measured_again(tmp_path):
    model, x, y = make("confidence")
    folder = save_result(robustness_curve(model, x, y, 0.1, budget=Dark()), tmp_path / "source")
    assert verify_result(folder, model).holds
    change = put("coverage", "attacked_aurc", value=0.7)
    answer = edited((model, folder), tmp_path / "run", change, sealed=True)
    assert answer.problems == ("coverage: not what the model gives",)


def edited(run, folder, change, *, sealed):
    model, source = run
    shutil.copytree(source, folder)
    content = Edited(folder)
    change(content)
    content.write(sealed=sealed)
    return verify_result(folder, model)


@pytest.mark.parametrize("name", SEALED)
def test_an_edit_is_found_though_it_was_sealed_again(run, tmp_path, name):
    change, text = SEALED[name]
    answer = edited(run, tmp_path / "run", change, sealed=True)
    assert any(re.search(text, problem) for problem in answer.problems), answer


@pytest.mark.parametrize("name", [*SEALED, *UNSEALED])
def test_an_edit_breaks_the_seal(run, tmp_path, name):
    change = UNSEALED[name] if name in UNSEALED else SEALED[name][0]
    assert not edited(run, tmp_path / "run", change, sealed=False).holds


def test_an_untouched_copy_holds(run, tmp_path):
    answer = edited(run, tmp_path / "run", lambda _: None, sealed=True)
    assert answer.holds, answer.problems


class Killed(BaseException):
    """Nothing of the program runs after it."""


@pytest.mark.integration
@pytest.mark.parametrize("points", [True, False])
def test_a_kill_while_saving_leaves_the_old_result_the_new_one_or_a_folder_that_says_so(
    tmp_path, monkeypatch, points
):
    model, x, y = make("confidence")
    old = robustness_curve(model, x, y, 0.05, budget=Little())
    new = robustness_curve(model, x, y, 0.1, budget=Little())
    new = new if points else replace(new, points=None)
    assert old.records != new.records
    steps = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink")}
    seen = set()
    for moment in range(1000):
        folder = save_result(old, tmp_path / str(moment))
        left = [moment]

        def one(name, left=left):
            def step(*args, **options):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return steps[name](*args, **options)

            return step

        with monkeypatch.context() as patch:
            for name in steps:
                patch.setattr(os, name, one(name))
            try:
                save_result(new, folder)
                done = True
            except Killed:
                done = False
        try:
            found = load_result(folder).records
            seen.add("old" if found == old.records else "new")
            assert found in (old.records, new.records)
            assert done == (found == new.records)
        except ValueError as error:
            assert "mixes two runs" in str(error)  # noqa: PT017
            assert not verify_result(folder, model).holds
            seen.add("mixed")
        if done:
            break
    assert {"old", "new"} <= seen
    assert moment > 5
