"""Certificates: the theorems on networks whose boundary is known, and the contract of `certify`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cpr_wrap
from cpr_wrap import AcceptAll, Confidence, Consistency, SelectiveClassifier, Verified
from cpr_wrap.bounds import Proof, leads
from cpr_wrap.evaluation import auditing
from cpr_wrap.meter import count_passes
from cpr_wrap.metrics.certificate import Certificate
from cpr_wrap.metrics.losses import PAPER_LOSSES
from cpr_wrap.testing import check_rule
from cpr_wrap.training import IBP


def line(slope: float = 4.0, where: float = 0.5, dtype: torch.dtype = torch.float32) -> nn.Module:
    """One pixel, two classes: class 1 above `where`, whose boundary is at exactly `where`."""
    layer = nn.Linear(1, 2).to(dtype)
    layer.load_state_dict(
        {
            "weight": torch.tensor([[-slope / 2], [slope / 2]]),
            "bias": torch.tensor([slope * where / 2, -slope * where / 2]),
        }
    )
    return nn.Sequential(nn.Flatten(), layer).eval().requires_grad_(False)


def tent() -> nn.Module:
    """One pixel: class 1 between 0.25 and 0.75, class 0 elsewhere; two pieces, so bounds matter."""
    first, last = nn.Linear(1, 2), nn.Linear(2, 2)
    first.load_state_dict(
        {"weight": torch.tensor([[1.0], [-1.0]]), "bias": torch.tensor([-0.5, 0.5])}
    )
    last.load_state_dict(
        {"weight": torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), "bias": torch.tensor([-0.25, 0.25])}
    )
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last).eval().requires_grad_(False)


def pixels(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1)


@pytest.mark.parametrize("rule", [AcceptAll(), Verified(radius=0.05)])
def test_of_a_linear_network_the_radius_is_the_distance_to_its_boundary(rule: Any) -> None:
    model = SelectiveClassifier(line(), rule)
    x, y = pixels(0.1, 0.3, 0.45, 0.9), torch.tensor([0, 0, 0, 1])
    found = cpr_wrap.certify(model, x, y, 0.2)
    exact = (x.flatten().double() - 0.5).abs().clamp_max(0.2 + rule.reach)
    assert found.radius.dtype == torch.float64
    assert bool((found.radius <= exact + 1e-6).all())
    torch.testing.assert_close(found.radius, exact, atol=1e-3, rtol=0)


def test_eps_itself_is_tried_first() -> None:
    model = SelectiveClassifier(line(), AcceptAll())
    found = cpr_wrap.certify(model, pixels(0.1, 0.2, 0.3), torch.tensor([0, 0, 0]), 0.19)
    assert bool((found.radius >= 0.19).all())


@pytest.mark.parametrize("network", [line, tent])
@pytest.mark.parametrize(
    "rule",
    [
        Verified(radius=0.1),
        Verified(radius=0.03, threshold=0.02),
        Consistency(radius=0.1, steps=4),
        Confidence(threshold=0.55),
        Confidence(threshold=0.52),
        AcceptAll(),
    ],
    ids=lambda rule: rule.describe(),
)
def test_no_point_contradicts_a_certificate(network: Any, rule: Any) -> None:
    """The theorems, by looking at every point of a fine grid."""
    model = SelectiveClassifier(network(), rule)
    x = pixels(*[0.02 * n for n in range(51)])
    y = model.base(x).argmax(dim=1)
    found = cpr_wrap.certify(model, x, y, 0.3)
    grid = torch.linspace(0, 1, 4001).view(-1, 1, 1, 1)
    answer = model(grid)
    distance = (grid.flatten().double() - x.flatten().double()[:, None]).abs()
    wrong = answer.accepted & (answer.predicted != y[:, None])
    nearest_mistake = distance.masked_fill(~wrong, math.inf).amin(dim=1)
    nearest_rejection = distance.masked_fill(answer.accepted, math.inf).amin(dim=1)
    assert bool((found.mistake_radius < nearest_mistake).all())
    assert bool(((found.rejection_radius < nearest_rejection) | nearest_rejection.isinf()).all())
    # And the certificates say something.
    assert float(found.mistake_radius.clamp(0, 1).mean()) > 0.1
    assert bool((found.rejection_radius > 0.01).any())


def test_verified_consistency_doubles_the_reach_of_a_radius() -> None:
    """With r = eps / 2, a proof at eps / 2 certifies eps."""
    model = SelectiveClassifier(line(), Verified(radius=0.15))
    x, y = pixels(0.34, 0.36), torch.tensor([0, 0])
    found = cpr_wrap.certify(model, x, y, 0.3)
    assert found.mistake_radius[0] >= 0.3 > found.mistake_radius[1]
    assert found.accuracy_at(0.0) == 0.5
    bare = cpr_wrap.certify(model.with_rule(AcceptAll()), x, y, 0.3)
    assert bare.accuracy_at(0.0) == 0.0
    assert bare.rejection_radius.tolist() == [math.inf, math.inf]


def test_wrong_and_rejected_images_have_no_certificate() -> None:
    model = SelectiveClassifier(line(), Verified(radius=0.1))
    found = cpr_wrap.certify(model, pixels(0.2, 0.45, 0.2), torch.tensor([1, 0, 0]), 0.2)
    for name in ("radius", "mistake_radius", "rejection_radius"):
        assert getattr(found, name)[0] == -math.inf
    assert found.mistake_radius[1] > 0.1
    assert found.rejection_radius[1] == -math.inf
    assert found.accuracy_at(0.0) == pytest.approx(1 / 3)


def test_two_proven_boxes_of_different_classes_never_meet() -> None:
    """On a random network: accepted points of another class are further than both radii."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    network.requires_grad_(False)
    network[1].weight.mul_(3)
    model = SelectiveClassifier(network, Verified(radius=0.02))
    side = torch.linspace(0, 1, 101)
    grid = torch.cartesian_prod(side, side).view(-1, 1, 1, 2)
    answer = model(grid)
    x = grid[::101]
    y = network(x).argmax(dim=1)
    found = cpr_wrap.certify(model, x, y, 0.2, crown=False)
    far = (grid.flatten(1).double() - x.flatten(1).double()[:, None]).abs().amax(dim=2)
    wrong = answer.accepted & (answer.predicted != y[:, None])
    assert int(answer.accepted.sum()) > 1000
    assert bool(wrong.any())
    assert bool((found.mistake_radius < far.masked_fill(~wrong, math.inf).amin(dim=1)).all())
    rejected = far.masked_fill(answer.accepted, math.inf).amin(dim=1)
    assert bool((found.rejection_radius < rejected).all())


# -- the rule


def test_the_rule_keeps_the_contract_of_rules() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    check_rule(Verified(radius=0.01), network, torch.rand(6, 1, 4, 4))


def test_a_margin_of_exactly_zero_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpr_wrap.rules import verified

    monkeypatch.setattr(verified, "proven_lead", lambda *_, **__: torch.tensor([0.0, 1e-30, -1.0]))
    answer = SelectiveClassifier(line(), Verified(radius=0.1))(pixels(0.1, 0.2, 0.3))
    assert answer.accepted.tolist() == [False, True, False]
    assert bool(answer.score[0] < 0)


def test_the_declared_cost_is_what_is_counted() -> None:
    model = SelectiveClassifier(line(), Verified(radius=0.1))
    with count_passes() as passes:
        model(pixels(0.1, 0.2))
    assert (passes.forwards, passes.backwards) == (6, 0)
    assert model.rule.cost.total == 3


def test_it_says_what_is_proven() -> None:
    model = SelectiveClassifier(line(), Verified(radius=0.1))
    near, far = model.rule.explain(model.look(pixels(0.1, 0.45)))
    assert near.startswith("the prediction is proven within 0.1, margin 1.")
    assert far.startswith("the prediction is not proven within 0.1, margin -0.")


def test_the_radius_is_calibrated() -> None:
    model = SelectiveClassifier(line(), Verified(radius=0.1))
    x = pixels(*[0.01 * n for n in range(50)])
    found = cpr_wrap.calibrate(model, x, torch.zeros(50, dtype=torch.long), 0.2)
    # The ten images nearest to 0.5 may be rejected, the one at 0.39 not.
    assert found.model.rule.radius == pytest.approx(0.11, abs=1e-2)
    assert found.record.num_rejected == 10


def test_a_negative_threshold_would_accept_what_is_not_proven() -> None:
    with pytest.raises(ValueError, match="threshold: a proven margin is above 0"):
        Verified(radius=0.1, threshold=-0.1)


# -- curves, files, errors


@pytest.fixture(scope="module")
def curve() -> cpr_wrap.RobustnessCurve:
    model = SelectiveClassifier(tent(), Verified(radius=0.05))
    x = pixels(*[0.03 * n + 0.01 for n in range(33)])
    y = model.base(x).argmax(dim=1)
    return cpr_wrap.robustness_curve(model, x, y, 0.12, budget="quick", certify=True)


def test_a_curve_proves_once_and_before_the_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpr_wrap.evaluation import curve as module

    order: list[str] = []
    for name in ("prove", "evaluate_block"):
        kept = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda *a, _kept=kept, _name=name, **k: order.append(_name) or _kept(*a, **k),
        )
    model = SelectiveClassifier(line(), AcceptAll())
    images = (pixels(0.4, 0.1), torch.tensor([0, 0]))
    cpr_wrap.robustness_curve(model, *images, 0.2, budget="quick", certify=True)
    assert order == ["prove", "evaluate_block"]


def test_certified_is_below_empirical_at_every_alpha(curve: cpr_wrap.RobustnessCurve) -> None:
    alphas = torch.linspace(0, 1, 501, dtype=torch.float64)
    certified, found = curve.certificate.accuracy_at(alphas), curve.accuracy_at(alphas)
    assert bool((certified <= found).all())
    assert bool((certified[1:] <= certified[:-1]).all())
    assert certified[0] > 0.5
    assert certified[-1] > 0.1
    for loss in PAPER_LOSSES:
        assert curve.certificate.total_robust_loss(loss) >= curve.total_robust_loss(loss)
    row = curve.table()[0]
    assert row["certified_accuracy"] == float(certified[0])
    assert curve.summary()["certified"]["accuracy_at"]["0"] == float(certified[0])


def test_a_certificate_is_written_and_read(curve: cpr_wrap.RobustnessCurve, tmp_path: Path) -> None:
    cpr_wrap.save_result(curve, tmp_path)
    back = cpr_wrap.load_result(tmp_path)
    for name in ("radius", "mistake_radius", "rejection_radius"):
        assert torch.equal(getattr(back.certificate, name), getattr(curve.certificate, name))
    plain = json.loads((tmp_path / "result.json").read_text())
    assert plain["figures"]["curve"][0]["certified_accuracy"] == curve.certificate.accuracy_at(0.0)
    assert plain["figures"]["losses"][0]["certified"] is not None
    assert plain["certificate"]["rule"] == curve.certificate.rule


def test_infinite_radii_survive_a_file() -> None:
    columns = torch.tensor([math.inf, -math.inf, 0.0, 0.25], dtype=torch.float64)
    facts: dict[str, Any] = {"eps": 0.1, "index": torch.arange(4)}
    first = Certificate(radius=columns, mistake_radius=columns, rejection_radius=columns, **facts)
    rows = json.loads(json.dumps(first.to_rows(), allow_nan=False))
    assert torch.equal(Certificate.from_rows(rows, **facts).radius, columns)


@pytest.mark.parametrize("what", ["accepted mistake", "rejected point"])
def test_a_point_inside_a_certified_radius_is_an_error(
    curve: cpr_wrap.RobustnessCurve, what: str
) -> None:
    name = "mistake_radius"
    if what == "accepted mistake":  # of which verified consistency has none
        model = SelectiveClassifier(line(), AcceptAll())
        images = (pixels(0.4, 0.1), torch.tensor([0, 0]))
        curve = cpr_wrap.robustness_curve(model, *images, 0.2, budget="quick", certify=True)
    else:
        name = "rejection_radius"
    forged = replace(curve.certificate, **{name: torch.ones_like(curve.certificate.radius)})
    with pytest.raises(ValueError, match=f"an? {what} inside the certified radius.*certificate is"):
        replace(curve, certificate=forged)


def test_what_cannot_be_certified_is_refused(curve: cpr_wrap.RobustnessCurve) -> None:
    x, y = pixels(0.1), torch.tensor([0])
    three = nn.Sequential(nn.Flatten(), nn.Linear(1, 3)).eval()
    with pytest.raises(ValueError, match="no certificate: rule 'rcd' does not declare"):
        cpr_wrap.certify(SelectiveClassifier(three, cpr_wrap.RejectClass()), x, y, 0.1)
    half = SelectiveClassifier(line().half(), AcceptAll())
    with pytest.raises(ValueError, match="computes in half precision"):
        cpr_wrap.certify(half, x, y, 0.1)
    with pytest.raises(TypeError, match="expected labels"):
        cpr_wrap.certify(SelectiveClassifier(line(), AcceptAll()), x, None, 0.1)
    other = replace(curve.certificate, index=curve.certificate.index + 1)
    with pytest.raises(ValueError, match="of different images"):
        other.check(curve.records)
    with pytest.raises(TypeError, match=r"radius: expected torch.float64"):
        replace(curve.certificate, radius=curve.certificate.radius.float())
    with pytest.raises(ValueError, match="got NaN"):
        replace(curve.certificate, radius=curve.certificate.radius * math.nan)


def test_images_and_eps_are_checked_as_those_of_a_curve_are() -> None:
    model = SelectiveClassifier(line(), AcceptAll())
    x, y = pixels(0.1, 0.2, 0.9), torch.tensor([0, 0, 1])
    for bad, text in (
        ([1, 1, 2], "every image once"),
        ([-1, 0, 1], "at least 0"),
        ([0, 1], "one for each of 3 images"),
        ([0.5, 1, 2], "whole numbers"),
    ):
        with pytest.raises(ValueError, match=f"indices: expected .*{text}"):
            cpr_wrap.certify(model, x, y, 0.1, indices=bad)
    with pytest.raises(ValueError, match="Linf 1 already reaches every image, got 8; did you mean"):
        cpr_wrap.certify(model, x, y, 8)
    data = TensorDataset(x, y)
    with pytest.raises(ValueError, match="a loader with shuffle=False"):
        cpr_wrap.certify(model, DataLoader(data, shuffle=True), None, 0.1)
    chosen = cpr_wrap.certify(model, data, None, 0.1, indices=[2, 0])
    assert chosen.index.tolist() == [2, 0]
    whole = cpr_wrap.certify(model, x, y, 0.1)
    assert torch.equal(chosen.radius, whole.radius[[2, 0]])


def test_a_rule_may_declare_no_certificate_for_some_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AcceptAll, "certificate", lambda *_: None)
    with pytest.raises(ValueError, match="declares none as it is set"):
        cpr_wrap.certify(
            SelectiveClassifier(line(), AcceptAll()), pixels(0.1), torch.tensor([0]), 0.1
        )


def test_other_threat_models_have_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpr_wrap.geometry import THREATS, _Linf

    class Other(_Linf):
        name = "Other"

    monkeypatch.setitem(THREATS._entries, "Other", Other())
    model = SelectiveClassifier(line(), AcceptAll())
    with pytest.raises(ValueError, match="bounds are for Linf and L2, got Other"):
        cpr_wrap.robustness_curve(
            model, pixels(0.1), torch.tensor([0]), 0.1, norm="Other", certify=True, budget="quick"
        )


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    model = SelectiveClassifier(line(), AcceptAll())
    x = pixels(*[0.01 * n for n in range(20)])
    y = torch.zeros(20, dtype=torch.long)
    cpr_wrap.certify(model, x, y, 0.1, progress=lambda *state: told.append(state))
    assert told == [(16, 20), (20, 20)]


# -- proofs and training


def test_a_search_never_reports_a_radius_that_was_not_proven() -> None:
    network = tent()
    x = pixels(*[0.013 * n for n in range(70)])
    y = network(x).argmax(dim=1)
    radius = Proof(network, x, y, 0.2, num_classes=2, most=0.4, crown=False).interval_radius()
    proven = leads(network, x, y, radius).amin(dim=1) > 0
    assert bool((proven | (radius == 0)).all())


def test_training_with_bounds_proves_more() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.rand(64, 1, 4, 4)
    y = (x.mean(dim=(1, 2, 3)) > 0.5).long()
    x = (x + 0.3 * (2.0 * y - 1).view(-1, 1, 1, 1)).clamp(0, 1)
    method = IBP(eps=0.1, weight=0.5)
    keys = torch.arange(64)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    before = method.loss(network, x, y, keys)
    for step in range(60):
        losses = method.scaled(min(1.0, (step + 1) / 20)).loss(network, x, y, keys)
        optimizer.zero_grad()
        losses.rows.mean().backward()
        optimizer.step()
    after = method.loss(network, x, y, keys)
    assert after.adversarial.float().mean() > 0.9 > before.adversarial.float().mean()
    assert after.rows.mean() < before.rows.mean()


def test_with_weight_one_the_loss_is_the_cross_entropy_of_the_bounds() -> None:
    network, y = line().requires_grad_(True), torch.tensor([0, 1])
    x = pixels(0.1, 0.7)
    losses = IBP(eps=0.1, weight=1.0).loss(network, x, y, torch.arange(2))
    worst = 4 * ((x.flatten() - 0.5).abs() - 0.1)
    torch.testing.assert_close(losses.rows, torch.nn.functional.softplus(-worst))


def test_small_boxes_lie_in_the_ball() -> None:
    """The worst point of half the ball with a box of the other half has the ball's corner."""
    network, y = line(), torch.tensor([0, 1])
    whole = IBP(eps=0.1, weight=1.0).loss(network, pixels(0.3, 0.7), y, torch.arange(2))
    small = IBP(eps=0.1, weight=1.0, box=0.5).loss(network, pixels(0.3, 0.7), y, torch.arange(2))
    torch.testing.assert_close(whole.rows, small.rows)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight": 1.5}, "weight: expected a share"),
        ({"box": 2.0}, "box: expected a share"),
        ({"norm": "L2"}, "interval bounds are for Linf"),
    ],
)
def test_settings_of_the_method_are_checked(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        IBP(**settings)


def test_the_report_shows_what_is_certified(
    curve: cpr_wrap.RobustnessCurve, tmp_path: Path
) -> None:
    from cpr_wrap.report import curve_values, losses, write_report

    folder = cpr_wrap.save_result(curve, tmp_path / "run")
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert 'class="certified' in page
    assert 'class="unknown' in page
    certified = f"{100 * curve.certificate.accuracy_at(0.0):.1f}"
    assert certified in curve_values(curve).render("text").splitlines()[-len(curve.alphas)]
    assert "certified," in losses(curve).render("text")
    axes = curve.plot()
    assert len(axes.lines) == 2


_QUICK = ("--rule", "none", "--eps", "0.01", "--num", "4", "--no-crown", "--per-image")


def test_the_command_line_certifies(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from cpr_wrap.cli import app

    run = CliRunner().invoke(
        app,
        [
            "certify",
            "bundled:mnist-compact-standard",
            "--rule",
            "none",
            "--eps",
            "0.01",
            "--num",
            "4",
            "--no-crown",
            "--json",
            "--per-image",
        ],
    )
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert found["images"] == len(found["per_image"]) == 4
    assert 0 <= found["right_at_eps"] <= 1
    text = CliRunner().invoke(
        app,
        [
            "certify",
            "bundled:mnist-compact-at",
            "--rule",
            "none",
            "--eps",
            "0.01",
            "--num",
            "2",
            "--no-crown",
            "--per-image",
        ],
    )
    assert "certified robustness" in text.stdout
    assert "the network alone is proven right within eps on" in text.stdout
    missing = CliRunner().invoke(
        app, ["certify", "bundled:mnist-compact-rcd", "--eps", "0.1", "--num", "2"]
    )
    assert missing.exit_code == 1
    assert "no certificate: rule 'rcd'" in missing.stderr


def test_an_audit_says_that_nothing_can_be_planted_for_a_rule_that_bounds_layers():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    model = SelectiveClassifier(network, Verified(radius=0.01))
    x = torch.rand(4, 1, 2, 2)
    y = model.logits(x).argmax(dim=1)
    curve = cpr_wrap.robustness_curve(model, x, y, 0.05, budget="quick")
    few = auditing._Few(model, curve, torch.arange(4), 0)
    assert auditing._planted(few) == (None, "none could be planted for this rule")
