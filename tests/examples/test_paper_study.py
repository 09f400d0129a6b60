"""The study runs from one end to the other on toys, and its document follows from its results."""

from __future__ import annotations

import json
from pathlib import Path

import paper_study
import pytest
import torch
from study import claims, paper, stages
from study.document import document
from study.evaluate import Bench
from study.materials import NATURAL, Materials
from study.options import STAGES, Options
from study.publish import publish
from study.read import Results
from study.verdict import OPEN
from torch import nn

from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.data import ImageData
from cpr_wrap.rules import AcceptAll
from cpr_wrap.selective import SelectiveClassifier

ROOT = Path(__file__).parent.parent.parent
PUBLISHED = ROOT / "docs" / "study"


class ToyNetwork(nn.Module):
    """Linear with five classes, the same for all, and further outputs if asked."""

    def __init__(self, extra: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        classes = torch.randn(36, 5, generator=random)
        more = torch.randn(36, extra, generator=random)
        self.weight = nn.Parameter(torch.cat([classes, more], dim=1))
        self.eval()

    def forward(self, x):
        return (x.flatten(1) - 0.5) @ self.weight


class Toys(Materials):
    """Small networks for most addresses; TRADES and the natural network are missing."""

    def model(self, address):
        if address in (stages.TRADES, NATURAL):
            raise LookupError(f"unknown model {address}")
        extra = address in (stages.RCD, stages.ATRR)
        return SelectiveClassifier(ToyNetwork(int(extra)), AcceptAll())

    def images(self, dataset, part, num=None):
        random = torch.Generator().manual_seed(len(part))
        count = min(num or 8, 8)
        images = torch.rand(8, 1, 6, 6, generator=random)[:count]
        labels = self.model(stages.AT).logits(images).argmax(dim=1)
        labels[0] = (labels[0] + 1) % 5  # one that is answered wrong
        return ImageData(
            images=images,
            labels=labels,
            indices=torch.arange(count),
            name=dataset,
            part=part,
            num_classes=5,
        )


TINY = ["--budget", "quick", "--images", "2", "--few", "2", "--validation", "6", "--clean", "6"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole study, published."""
    folder = tmp_path_factory.mktemp("study")
    out, published = folder / "runs", folder / "docs" / "study"
    stated = ["--out", str(out), "--publish", str(published)]
    paper_study.main(["--only", ",".join(STAGES[:-1]), *TINY, *stated], Toys())
    return out, published


def test_every_stage_leaves_results(finished):
    out, published = finished
    results = Results(published)
    assert set(results.stages) == set(STAGES) - {"audit"}
    expected = {method for method in stages.MAIN if not method.startswith("TRADES")}
    for budget in (paper.SEEN, paper.UNSEEN):
        assert set(results.table(budget)) == expected
    assert (published / "curves-seen.svg").exists()
    assert (published / "curves-unseen.png").exists()
    assert (published / "curves-cifar10-seen.png").exists()
    assert not list(published.rglob("*.safetensors"))
    assert list(out.rglob("adversarial.safetensors"))


def test_thresholds_are_calibrated_and_others_are_left(finished):
    seen = Results(finished[1]).table(paper.SEEN)
    assert seen["AT+CR"].rule["threshold"] > 0
    assert seen["RCD"].rule["threshold"] == 0
    assert seen["AT+CPR"].rule["radius"] == paper.RADIUS
    assert "for_comparison" in seen["AT+CPR"].details["calibration"]
    assert seen["AT"].rule["name"] == "none"


def test_document_says_what_is_missing(finished):
    text = (finished[1].parent / "study.md").read_text()
    assert "without a result: TRADES, TRADES+CR, TRADES+CPR." in text
    assert "## Audit of the evaluation\n\nThis stage has no result yet." in text


def test_more_effort_checks_the_main_table(finished):
    text = (finished[1].parent / "study.md").read_text()
    table = text.split("### What more effort finds")[1].split("\n## ")[0]
    assert [line.split(" | ")[:2] for line in table.splitlines() if line.startswith("| AT+")] == [
        ["| AT+CPR, ε = 0.3", "2"],
        ["| AT+CPR, ε = 0.4", "2"],
    ]
    plans = [task.plan for task in stages.check(Options(budget="standard"))]
    assert [plan.name for plan in plans] == ["beyond standard"] * 4
    rule = stages.paper_cpr()
    known, more = BUDGETS["standard"].stages(rule, 0.4), plans[0].stages(rule, 0.4)
    assert more[: len(known)] == known
    assert len(more) == len(known) + 4


def test_document_of_nothing(tmp_path):
    text = document(tmp_path / "study")
    assert text.count("This stage has no result yet.") >= 7
    assert text.count(f"**{OPEN}**") == len(claims.CLAIMS)


def test_a_second_run_does_nothing_again(finished, capsys):
    out, _ = finished
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*") if file.is_file()}
    paper_study.main(["--only", "main,ccat", *TINY, "--out", str(out)], Toys())
    after = {file: file.stat().st_mtime_ns for file in out.rglob("*") if file.is_file()}
    assert after == before
    said = capsys.readouterr().err
    assert said.count("there already") == 12 + 4
    assert "missing: main/trades+cr-eps0.3: unknown model" in said


def test_published_twice_is_published_the_same(finished, tmp_path):
    out, published = finished
    publish(out, tmp_path / "study")
    for file in published.rglob("*.json*"):
        assert (tmp_path / "study" / file.relative_to(published)).read_text() == file.read_text()


def test_published_records_name_the_attack_and_no_origin(finished):
    line = next(finished[1].glob("main/*/per_image.jsonl")).read_text().splitlines()[0]
    assert "provenance" not in json.loads(line)
    assert "outer_by" in json.loads(line)


def test_an_audit_is_written_once(finished, tmp_path):
    out, _ = finished
    options = Options(
        out=out, budget="quick", images=2, few=2, audit_images=1, black_box_images=1, clean=6
    )
    said: list[str] = []
    bench = Bench(options, Toys(), said.append)
    task = next(task for task in stages.main(options) if task.method == "AT+CR")
    bench.audit(task)
    bench.audit(task)
    assert len(said) == 1
    publish(out, tmp_path / "study")
    text = document(tmp_path / "study")
    assert "every recorded adversarial input does what is recorded | 1 | 0 | 0 |" in text
    assert "measured for AT+CR, ε = 0.3." in text


def test_the_published_document_follows_from_the_published_results():
    assert any(PUBLISHED.glob("*/*/result.json"))
    assert (PUBLISHED.parent / "study.md").read_text() == document(PUBLISHED)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"budget": "huge"}, "budget: expected quick or standard, got 'huge'"),
        ({"only": ("mian",)}, "only: expected stages among main, .* got mian"),
        ({"images": 0}, "images: expected at least 1, got 0"),
    ],
)
def test_options_refuse(changed, message):
    with pytest.raises(ValueError, match=message):
        Options(**changed)


def test_a_missing_natural_network_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LookupError, match="pyautoattack's example network is not installed"):
        Materials().model(NATURAL)


def test_real_materials():
    images = Materials().images("mnist", "robust", 3)
    assert len(images) == 3
    assert Materials().model(stages.AT).logits(images.images).shape == (3, 10)


def test_the_papers_tables_agree_with_each_other():
    tables = (paper.LOSSES, paper.TRADITIONAL), (paper.CIFAR10_LOSSES, paper.CIFAR10_TRADITIONAL)
    for losses, traditional in tables:
        for budget, rows in losses.items():
            for method, row in rows.items():
                # Robust accuracy with detection is 1 - s(0), whatever table it stands in.
                assert 1 - row["step:0"] == pytest.approx(traditional[method][budget] / 100)
                steps = [
                    row[f"step:{a}"] for a in (0, 0.01, 0.05, 0.1, 0.15, 0.2) if f"step:{a}" in row
                ]
                ramps = [row[f"ramp:{t}"] for t in (1, 2, 3, 4) if f"ramp:{t}" in row]
                assert steps == sorted(steps)
                assert ramps == sorted(ramps, reverse=True)
    for row in (*paper.TRADITIONAL.values(), *paper.CIFAR10_TRADITIONAL.values()):
        accuracy, coverage = row["accuracy_with_rejection"], 100 - row["rejection_rate"]
        assert 2 * accuracy * coverage / (accuracy + coverage) == pytest.approx(
            row["f1_like"], abs=0.011
        )
    for budget in (paper.SEEN, paper.UNSEEN):
        assert paper.CCAT["HCMOA"][budget] == paper.TRADITIONAL["CCAT"][budget]
    for method, row in paper.ATTACKS.items():
        assert row["CHCMOA"] == paper.TRADITIONAL[method][paper.SEEN]


def test_unreachable_radii_are_one_rule():
    assert stages.paper_cpr(0.2, 10) == stages.paper_cpr(0.1, 10)
    folders = [task.folder for task in stages.radius(Options())]
    assert len(folders) == len(set(folders)) == 2 * (2 + 4 + 4)


@pytest.mark.parametrize(("rejected", "able"), [(10, True), (11, False)])
def test_rate(rejected, able):
    assert stages.within_rate(rejected, 1000, 0.01) is able
