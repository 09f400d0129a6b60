"""What the study says of result folders with chosen records."""

from __future__ import annotations

import pytest
import torch
from study import claims, paper, reasons, stages, tables
from study.document import document
from study.figure import draw_curves
from study.losses import total_loss
from study.read import Results
from study.verdict import FAILS, HOLDS, OPEN, UNDECIDED, chance_of, counted, duel, paired

from cpr_wrap.evaluation import save_result
from cpr_wrap.metrics import Records, RobustnessCurve

INF = float("inf")


def put(root, stage, method, eps, broken, radii, *, study=None, ablation=None, first=0, model=""):
    """Write a result folder with chosen accepted mistakes and smallest rejected radii."""
    count = len(broken)
    flags = torch.tensor(broken)
    distances = torch.where(flags, eps, INF).double()
    radii = torch.tensor(radii, dtype=torch.float64)
    labels = torch.zeros(count, dtype=torch.int64)
    records = Records(
        index=first + torch.arange(count),
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
        "model": model,
        "dataset": "mnist",
        "calibration": {},
        "clean_images": None,
        "study": study or {},
    }
    name = "-".join([method, f"{eps:g}", *map(str, (study or {}).values())])
    save_result(RobustnessCurve(records, details=details), root / stage / name, extra=extra)


def verdict(claim, root):
    return claim(Results(root)).verdict


def put_all(root, eps, losing, *, count=8):
    """Every method of the main table: these make a mistake on every image, the others on none."""
    for method in (*stages.CPR, *stages.BASELINES):
        put(root, "main", method, eps, [method in losing] * count, [INF] * count)


WINNERS = {claims.small_alpha_seen: 0.3, claims.all_losses_unseen: 0.4}


@pytest.mark.parametrize("claim", WINNERS)
def test_cpr_against_baselines(tmp_path, claim):
    eps = WINNERS[claim]
    put(tmp_path, "main", "AT+CR", eps, [True] * 8, [INF] * 8)
    assert verdict(claim, tmp_path) == OPEN
    put(tmp_path, "main", "AT+CPR", eps, [False] * 8, [INF] * 8)
    assert verdict(claim, tmp_path) == UNDECIDED  # the other methods are missing
    put_all(tmp_path, eps, stages.BASELINES)
    assert verdict(claim, tmp_path) == HOLDS
    put_all(tmp_path, eps, (*stages.CPR, *stages.BASELINES))
    assert verdict(claim, tmp_path) == UNDECIDED
    put(tmp_path, "main", "RCD", eps, [False] * 8, [INF] * 8)
    assert verdict(claim, tmp_path) == FAILS


def test_ramps_count_far_rejections(tmp_path):
    put_all(tmp_path, 0.3, [name for name in stages.BASELINES if name != "TRADES+CR"])
    put(tmp_path, "main", "TRADES+CPR", 0.3, [True] * 8, [INF] * 8)
    put(tmp_path, "main", "TRADES+CR", 0.3, [True, *[False] * 7], [INF] * 8)
    put(tmp_path, "main", "AT+CPR", 0.3, [False] * 8, [0.02] * 8)
    # ramp 1 costs more than 9/10 an image, ramp 2 more than 8/10; the baseline loses an eighth.
    assert verdict(claims.ramps_seen, tmp_path) == HOLDS
    put(tmp_path, "main", "AT+CPR", 0.3, [False] * 8, [0.29] * 8)
    found = claims.ramps_seen(Results(tmp_path))
    assert found.verdict == UNDECIDED
    # A thirtieth and less; by the paper's straight line from half of eps on it is a quarter.
    assert [line[0] for line in found.lines] == ["ramp t = 1", "ramp t = 2"]
    assert "integrated exactly, CPR is worse in 0 of 2" in found.remarks[0]


def test_a_difference_that_images_cannot_decide_is_said_to_be_undecided(tmp_path):
    put_all(tmp_path, 0.3, stages.BASELINES, count=5)
    found = claims.small_alpha_seen(Results(tmp_path))
    assert found.verdict == UNDECIDED
    assert found.limits == ("4 of 4 comparisons within chance",)
    assert found.lines[0][3:] == ["AT+CPR 0.000", "AT+CR 1.000", "-1.000 (0 : 5, p = 0.062)", "5"]


@pytest.mark.parametrize(
    ("more", "fewer", "sign", "how"),
    [
        (0, 0, 0, "0 : 0, p = 1.000"),
        (5, 0, 0, "5 : 0, p = 0.062"),  # 2 / 2**5
        (0, 6, -1, "0 : 6, p = 0.031"),
        (9, 1, 1, "9 : 1, p = 0.021"),  # 2 * (10 + 1) / 2**10
        (8, 2, 0, "8 : 2, p = 0.109"),  # 2 * (45 + 10 + 1) / 2**10
        (20, 0, 1, "20 : 0, p < 0.001"),
    ],
)
def test_sign_test(more, fewer, sign, how):
    found = counted(more, fewer, 100)
    assert (found.sign, found.how) == (sign, how)
    assert found.gap == pytest.approx((more - fewer) / 100)
    assert (-found).sign == -sign


def test_ramps_are_compared_by_the_papers_rule_and_images_by_number(tmp_path):
    put(tmp_path, "main", "a", 0.3, [False] * 20, [0.02, 0.07] * 10)
    put(tmp_path, "main", "b", 0.3, [False] * 10, [0.2] * 10)
    first, second = Results(tmp_path).of("main")
    found = paired(first, second, "ramp:1")
    # s rises along a line up to alpha = 0.1 (from 0.05), 0.25 (from 0.2) and 1 (from 0.5).
    assert found.images == 10
    assert found.gap == pytest.approx((0.925 + 0.775) / 2 - 0.25)
    assert (found.sign, found.how) == (1, "p = 0.002")  # 2 / 2**10


def test_shares_of_images_are_the_papers_loss(tmp_path):
    put(tmp_path, "main", "a", 0.3, [True, *[False] * 5], [INF, 0, 0.001, 0.1, 0.29, INF])
    (result,) = Results(tmp_path).of("main")
    for name in ("step:0.05", "ramp:1", "ramp:2", "ramp:3.5"):
        expected = result.curve.total_robust_loss(name, rule="trapezoid")
        assert total_loss(result.curve, name) == pytest.approx(expected, abs=1e-12)


def test_signs_at_random():
    ones = torch.tensor([1.0] * 9 + [-1.0], dtype=torch.float64)
    assert chance_of(ones) == pytest.approx(22 / 1024)  # the sign test of 9 : 1
    # Four images decide, however many differ by next to nothing.
    few = torch.cat([torch.full((4,), -0.98), torch.full((96,), 0.0005)]).double()
    assert chance_of(few) == pytest.approx(2 / 2**4, abs=0.02)
    assert chance_of(torch.linspace(0.5, 1, 100).double()) < 0.001


@pytest.mark.parametrize(
    ("near", "count", "expected"), [(100, 100, HOLDS), (90, 100, FAILS), (9, 9, UNDECIDED)]
)
def test_ccat_near_images(tmp_path, near, count, expected):
    radii = [0.019] * near + [0.3] * (count - near)
    put(tmp_path, "main", "CCAT", 0.4, [False] * count, radii)
    assert verdict(claims.ccat_rejects_nearby, tmp_path) == OPEN  # mistakes end the search there
    # Nobody searches where the clean image is an accepted mistake.
    put(tmp_path, "rejections", "CCAT", 0.4, [False] * count + [True], [*radii, INF])
    assert verdict(claims.ccat_rejects_nearby, tmp_path) == expected


@pytest.mark.parametrize(("radius", "expected"), [(INF, HOLDS), (0.2, FAILS)])
def test_rcd_and_rejection(tmp_path, radius, expected):
    put(tmp_path, "main", "RCD", 0.4, [True, True], [INF, INF])
    assert verdict(claims.rcd_never_rejects, tmp_path) == OPEN  # rejections were not looked for
    put(tmp_path, "rejections", "RCD", 0.4, [False, True], [INF, INF])
    assert verdict(claims.rcd_never_rejects, tmp_path) == UNDECIDED  # one budget is missing
    put(tmp_path, "rejections", "RCD", 0.3, [False, True], [radius, INF])
    assert verdict(claims.rcd_never_rejects, tmp_path) == expected


@pytest.mark.parametrize(
    ("weak", "strong", "differ", "expected"),
    [(0.05, 0.2, 6, HOLDS), (0.2, 0.05, 6, FAILS), (0.05, 0.2, 5, UNDECIDED)],
)
def test_radii(tmp_path, weak, strong, differ, expected):
    study = {"images": "robust", "steps": paper.STEPS}
    errors = [True] * differ + [False] * (12 - differ)
    at_one = [INF] * 6 + [0.3 if differ == 6 or row else INF for row in range(6)]
    put(tmp_path, "radius", "a", 0.3, errors, [INF] * 12, study={**study, "radius": weak})
    put(tmp_path, "radius", "b", 0.3, [False] * 12, at_one, study={**study, "radius": strong})
    if expected == HOLDS:
        assert verdict(claims.larger_radius_helps, tmp_path) == UNDECIDED  # radii are missing
    low = errors if weak < strong else [False] * 12
    for between in (0.1, 0.15):
        put(tmp_path, "radius", "c", 0.3, low, [INF] * 12, study={**study, "radius": between})
    assert verdict(claims.larger_radius_helps, tmp_path) == expected
    # At alpha 1 the mistakes of one stand against the rejections of the other.
    for name, size in (("a", weak), ("c", 0.1), ("c", 0.15)):
        rejected = at_one if name == "c" and weak > strong else [INF] * 12
        put(tmp_path, "radius", name, 0.3, [False] * 12, rejected, study={**study, "radius": size})
    assert verdict(claims.larger_radius_hurts, tmp_path) == expected


def test_radii_on_other_images_cannot_be_compared(tmp_path):
    study = {"images": "robust", "steps": paper.STEPS}
    for radius, first in ((0.05, 0), (0.1, 7)):
        named = {**study, "radius": radius}
        put(tmp_path, "radius", "a", 0.3, [False], [INF], study=named, first=first)
    with pytest.raises(ValueError, match=r"expected the same images in .*, got none"):
        claims.larger_radius_helps(Results(tmp_path))


@pytest.mark.parametrize(
    ("strong", "weak", "expected"),
    [
        (range(6), (), HOLDS),
        (range(5), (), UNDECIDED),
        ((), range(6), FAILS),
        (range(4), range(4), UNDECIDED),
        (range(10), range(20, 24), UNDECIDED),  # six more, but not the same ones: p = 0.18
    ],
)
def test_strongest_outer_attack(tmp_path, strong, weak, expected):
    lost = {"HCMOA": list(weak), "CHCMOA": list(strong)}
    rows = [
        {"attack": name, "alpha": 0.0, "robustness": 1 - len(images) / 100, "lost": images}
        for name, images in lost.items()
    ]
    rows.append({"attack": "LCIA", "alpha": 1.0, "robustness": 0.1, "lost": [1]})
    put(tmp_path, "attacks", "AT+CPR", 0.3, [False] * 100, [INF] * 100, ablation=rows)
    assert verdict(claims.strongest_outer, tmp_path) == UNDECIDED  # TRADES+CPR is missing
    put(tmp_path, "attacks", "TRADES+CPR", 0.3, [False] * 100, [INF] * 100, ablation=rows)
    assert verdict(claims.strongest_outer, tmp_path) == expected


@pytest.mark.parametrize(("broken", "expected"), [(6, HOLDS), (5, UNDECIDED)])
def test_attacks_on_ccat(tmp_path, broken, expected):
    errors = [True] * broken + [False] * (6 - broken)
    for eps in (0.3, 0.4):
        put(tmp_path, "ccat", "CCAT", eps, errors, [INF] * 6, study={"attack": "HCMOA"})
        other = {"attack": "PGD-backtracking"}
        put(tmp_path, "ccat", "CCAT", eps, [False] * 6, [INF] * 6, study=other)
    assert verdict(claims.stronger_on_ccat, tmp_path) == expected


@pytest.mark.parametrize(
    ("without", "with_cpr", "expected"),
    [(6, 0, HOLDS), (5, 0, UNDECIDED), (0, 6, FAILS)],
)
def test_rejection_against_none(tmp_path, without, with_cpr, expected):
    for eps in (0.3, 0.4):
        for base in ("AT", "TRADES"):
            for method, errors in ((base, without), (f"{base}+CPR", with_cpr)):
                broken = [True] * errors + [False] * (6 - errors)
                put(tmp_path, "main", method, eps, broken, [INF] * 6)
    assert verdict(claims.rejection_helps, tmp_path) == expected
    (tmp_path / "main" / "TRADES-0.3" / "result.json").unlink()
    found = claims.rejection_helps(Results(tmp_path))
    assert found.verdict == UNDECIDED
    assert "1 of 4 comparisons missing" in found.limits


def test_the_best_is_picked_on_the_images_that_all_have(tmp_path):
    put(tmp_path, "main", "AT+CPR", 0.3, [True, True, *[False] * 8], [INF] * 10)
    put(tmp_path, "main", "TRADES+CPR", 0.3, [False, True], [INF] * 2)
    put(tmp_path, "main", "AT+CR", 0.3, [True] * 10, [INF] * 10)
    found = duel(Results(tmp_path).table("seen"), stages.CPR, ["AT+CR"], "step:0")
    # Over all of its images AT+CPR looks better.
    assert (found.cpr.method, found.losses, found.difference.images) == ("TRADES+CPR", (0.5, 1), 2)


@pytest.mark.parametrize(("claim", "eps"), [(claims.cifar10_seen, 8), (claims.cifar10_unseen, 16)])
def test_cifar10(tmp_path, claim, eps):
    assert verdict(claim, tmp_path) == OPEN
    put(tmp_path, "cifar10", "AT+CR", eps / 255, [True] * 8, [INF] * 8)
    put(tmp_path, "cifar10", "AT+CPR", eps / 255, [False] * 8, [INF] * 8)
    assert verdict(claim, tmp_path) == HOLDS


def test_steps_have_exact_intervals_and_ramps_bootstrap_ones(tmp_path):
    put(tmp_path, "main", "a", 0.3, [True] + [False] * 99, [INF] * 50 + [0.15] * 50)
    curve = Results(tmp_path).of("main")[0].curve
    step, ramp = tables.intervals(curve, ("step:0", "ramp:1"))
    # Clopper-Pearson of one in a hundred.
    assert (step.low, step.high) == pytest.approx((0.000253, 0.0545), abs=1e-4)
    assert ramp.method == "bootstrap"


@pytest.mark.parametrize("ramp", ["ramp:1", "ramp:3", "ramp:4"])
def test_ramps_that_are_shares_have_exact_intervals_too(tmp_path, ramp):
    put(tmp_path, "main", "a", 0.3, [True] * 10, [INF] * 10)
    (interval,) = tables.intervals(Results(tmp_path).of("main")[0].curve, (ramp,))
    assert interval.low == pytest.approx(0.6915, abs=1e-3)  # Clopper-Pearson of ten in ten


def test_order_of_methods(tmp_path):
    put(tmp_path, "main", "AT+CPR", 0.4, [False] * 4, [INF] * 4)
    put(tmp_path, "main", "AT+CR", 0.4, [True] * 4, [INF] * 4)
    put(tmp_path, "main", "RCD", 0.4, [True] * 4, [INF] * 4)
    # The paper has AT+CPR first in ten losses, and AT+CR and RCD as equals.
    assert tables.same_order(Results(tmp_path), paper.UNSEEN) == (20, 20)
    put(tmp_path, "main", "RCD", 0.4, [False] * 4, [INF] * 4)
    assert tables.same_order(Results(tmp_path), paper.UNSEEN) == (10, 20)


@pytest.mark.parametrize(("far", "ahead"), [(0.15, "up to 0.49"), (INF, "everywhere")])
def test_with_and_without_rejection(tmp_path, far, ahead):
    assert tables.with_and_without(Results(tmp_path)) == ""
    put(tmp_path, "main", "AT", 0.3, [True, False], [INF, INF])
    put(tmp_path, "main", "AT+CPR", 0.3, [False, False], [far, far])
    assert tables.with_and_without(Results(tmp_path)).endswith(f"| {ahead} |")


def test_reasons_are_facts_of_the_results(tmp_path):
    assert reasons.likely(Results(tmp_path)) == []
    put(tmp_path, "main", "AT", 0.3, [True, False], [INF, INF], model=stages.AT)
    base, training = reasons.likely(Results(tmp_path))
    assert "AT 50.0 % seen (paper 84.70 %)" in base
    assert "the paper trains for 100 epochs with 40 steps" in training


def test_a_method_looks_the_same_in_every_figure(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("study.figure.write_figure", lambda figure, path, dpi: drawn.append(figure))
    put(tmp_path, "main", "AT+CPR", 0.3, [False], [0.2])
    put(tmp_path, "main", "AT+CPR", 0.4, [False], [0.2])
    put(tmp_path, "main", "AT+CR", 0.4, [True], [INF])
    draw_curves(tmp_path)
    lines = [{line.get_label(): line for line in figure.axes[0].lines} for figure in drawn]
    looks = [
        (by["AT+CPR"].get_color(), by["AT+CPR"].get_linestyle(), by["AT+CPR"].get_linewidth())
        for by in lines
    ]
    assert [len(by) for by in lines] == [1, 1, 2, 2]
    assert len(set(looks)) == 1
    assert lines[-1]["AT+CR"].get_linestyle() != lines[-1]["AT+CPR"].get_linestyle()


def test_notes_of_people_are_in_the_document(tmp_path):
    assert "What was looked into" not in document(tmp_path)
    (tmp_path / "notes.md").write_text("A note.\n")
    assert "### What was looked into\n\nA note.\n\n## " in document(tmp_path)
