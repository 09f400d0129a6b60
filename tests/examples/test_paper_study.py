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
from study.options import Options
from study.publish import publish
from study.read import Results
from study.verdict import FAILS, HOLDS, OPEN
from torch import nn

from cpr_wrap.data import ImageData
from cpr_wrap.evaluation import save_result
from cpr_wrap.metrics import Records, RobustnessCurve
from cpr_wrap.rules import AcceptAll
from cpr_wrap.selective import SelectiveClassifier

ROOT = Path(__file__).parent.parent.parent
INF = float("inf")
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
    paper_study.main(["--only", "main,check,ccat,attacks,radius,cifar10", *TINY, *stated], Toys())
    return out, published


def test_every_stage_leaves_results(finished):
    out, published = finished
    results = Results(published)
    assert set(results.stages) == {"main", "check", "ccat", "attacks", "radius", "cifar10"}
    expected = {method for method in stages.MAIN if not method.startswith("TRADES")}
    for budget in (paper.SEEN, paper.UNSEEN):
        assert set(results.table(budget)) == expected
    assert (published / "curves-seen.svg").exists()
    assert (published / "curves-unseen.png").exists()
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


def test_a_larger_budget_checks_the_quick_one(finished):
    text = (finished[1].parent / "study.md").read_text()
    table = text.split("### How much the quick budget misses")[1].split("\n## ")[0]
    assert [line.split(" | ")[:2] for line in table.splitlines() if line.startswith("| AT+")] == [
        ["| AT+CPR", "2"],
        ["| AT+CR", "2"],
    ]
    assert not list(stages.check(Options(budget="standard")))


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
    assert "every recorded adversarial input does what is recorded | 1 | 0 | 0" in text


@pytest.mark.skipif(not any(PUBLISHED.glob("*/*/result.json")), reason="nothing is published")
def test_the_published_document_follows_from_the_published_results():
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


def put(root, stage, method, eps, broken, radii, *, study=None, ablation=None):
    """Write a result folder with chosen accepted mistakes and smallest rejected radii."""
    count = len(broken)
    flags = torch.tensor(broken)
    distances = torch.where(flags, eps, INF).double()
    radii = torch.tensor(radii, dtype=torch.float64)
    labels = torch.zeros(count, dtype=torch.int64)
    records = Records(
        index=torch.arange(count),
        label=labels,
        clean_label=torch.where(radii == 0, -1, labels),
        base_label=labels,
        outer_broken=flags,
        outer_distance=distances,
        outer_by=tuple("CHCMOA" if b else "" for b in broken),
        rejected_radius=radii,
        rejected_by=tuple("LCIA" if r < INF else "" for r in radii.tolist()),
        boundary_distance=None,
        eps=eps,
        norm="Linf",
    )
    rule = {"name": "confidence", "threshold": 0.5}
    details = {
        "settings": {"budget": "standard", "rule": rule},
        "passes": [{"seconds": 1.0}],
        "passes_total": {"per_image": 10.0},
        "ablation": ablation,
    }
    extra = {
        "name": method,
        "dataset": "mnist",
        "calibration": {},
        "clean_images": None,
        "study": study or {},
    }
    name = "-".join([method, f"{eps:g}", *map(str, (study or {}).values())])
    save_result(RobustnessCurve(records, details=details), root / stage / name, extra=extra)


def verdict(claim, root):
    return claim(Results(root)).verdict


@pytest.mark.parametrize(
    ("claim", "eps"), [(claims.small_alpha_seen, 0.3), (claims.all_losses_unseen, 0.4)]
)
def test_cpr_against_baselines(tmp_path, claim, eps):
    put(tmp_path, "main", "AT+CR", eps, [True, True, False], [INF, INF, INF])
    assert verdict(claim, tmp_path) == OPEN
    put(tmp_path, "main", "AT+CPR", eps, [True, False, False], [INF, 0.29, 0.29])
    assert verdict(claim, tmp_path) == HOLDS
    put(tmp_path, "main", "RCD", eps, [False, False, False], [INF, INF, INF])
    assert verdict(claim, tmp_path) == FAILS


def test_ramps_count_far_rejections(tmp_path):
    put(tmp_path, "main", "TRADES+CR", 0.3, [True, False, False, False], [INF] * 4)
    put(tmp_path, "main", "AT+CPR", 0.3, [False] * 4, [0.1] * 4)
    # ramp 1 costs 2/3 an image, ramp 2 4/9; the baseline loses a quarter.
    assert verdict(claims.ramps_seen, tmp_path) == HOLDS
    assert verdict(claims.small_alpha_seen, tmp_path) == HOLDS
    put(tmp_path, "main", "AT+CPR", 0.3, [False] * 4, [0.29] * 4)
    assert verdict(claims.ramps_seen, tmp_path) == FAILS


def test_a_difference_that_images_cannot_decide_is_said_to_be_undecided(tmp_path):
    put(tmp_path, "main", "AT+CR", 0.3, [True, False, False, False], [INF] * 4)
    put(tmp_path, "main", "AT+CPR", 0.3, [False] * 4, [INF] * 4)
    found = claims.small_alpha_seen(Results(tmp_path))
    assert found.verdict == HOLDS
    assert "includes zero for step α₀ = 0," in found.remarks[0]
    assert found.limits[0] == "within sampling error for 4 of 4 losses"


@pytest.mark.parametrize(("near", "expected"), [(100, HOLDS), (90, FAILS)])
def test_ccat_near_images(tmp_path, near, expected):
    radii = [0.019] * near + [0.3] * (100 - near)
    put(tmp_path, "main", "CCAT", 0.4, [False] * 100, radii)
    assert verdict(claims.ccat_rejects_nearby, tmp_path) == expected


@pytest.mark.parametrize(("radius", "expected"), [(INF, HOLDS), (0.2, FAILS)])
def test_rcd_and_rejection(tmp_path, radius, expected):
    put(tmp_path, "main", "RCD", 0.3, [False, True], [radius, INF])
    assert verdict(claims.rcd_never_rejects, tmp_path) == expected


@pytest.mark.parametrize(("order", "expected"), [((0.05, 0.2), HOLDS), ((0.2, 0.05), FAILS)])
def test_radii(tmp_path, order, expected):
    weak, strong = order
    study = {"images": "robust", "steps": paper.STEPS}
    put(tmp_path, "radius", "a", 0.3, [True, False], [INF, INF], study={**study, "radius": weak})
    put(tmp_path, "radius", "b", 0.3, [False, False], [0.3, 0.3], study={**study, "radius": strong})
    assert verdict(claims.larger_radius_helps, tmp_path) == expected
    assert verdict(claims.larger_radius_hurts, tmp_path) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.9, HOLDS), (0.95, FAILS)])
def test_strongest_outer_attack(tmp_path, share, expected):
    rows = [
        {"attack": "HCMOA", "alpha": 0.0, "robustness": 0.94},
        {"attack": "CHCMOA", "alpha": 0.0, "robustness": share},
        {"attack": "LCIA", "alpha": 1.0, "robustness": 0.1},
    ]
    put(tmp_path, "attacks", "AT+CPR", 0.3, [False], [INF], ablation=rows)
    assert verdict(claims.strongest_outer, tmp_path) == expected


@pytest.mark.parametrize(("broken", "expected"), [(True, HOLDS), (False, FAILS)])
def test_attacks_on_ccat(tmp_path, broken, expected):
    put(tmp_path, "ccat", "CCAT", 0.3, [broken], [INF], study={"attack": "HCMOA"})
    put(tmp_path, "ccat", "CCAT", 0.3, [False], [INF], study={"attack": "PGD-backtracking"})
    assert verdict(claims.stronger_on_ccat, tmp_path) == expected


@pytest.mark.parametrize(("broken", "expected"), [(True, HOLDS), (False, FAILS)])
def test_rejection_against_none(tmp_path, broken, expected):
    put(tmp_path, "main", "AT", 0.3, [broken], [INF])
    put(tmp_path, "main", "AT+CPR", 0.3, [False], [0.3])
    assert verdict(claims.rejection_helps, tmp_path) == expected


def test_unreachable_radii_are_one_rule():
    assert stages.paper_cpr(0.2, 10) == stages.paper_cpr(0.1, 10)
    folders = [task.folder for task in stages.radius(Options())]
    assert len(folders) == len(set(folders)) == 2 * (2 + 4 + 4)


@pytest.mark.parametrize(("rejected", "able"), [(10, True), (11, False)])
def test_rate(rejected, able):
    assert stages.within_rate(rejected, 1000, 0.01) is able
