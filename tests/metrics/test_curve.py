from __future__ import annotations

import builtins
import importlib
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_wrap.metrics import PAPER_ALPHAS, PAPER_LOSSES, RobustnessCurve, rounding

from .making import INF, falls, findings, make

# Images: clean mistake; mistake at 0.1; rejected clean; rejected from 0.02; from 0.1; nothing.
OUTER = [0, 0.1, INF, INF, INF, INF]
REJECTED = [INF, 0.04, 0, 0.02, 0.1, INF]


@pytest.fixture
def curve():
    return RobustnessCurve(make(OUTER, REJECTED, eps=0.2))


def test_errors_counted_by_hand(curve):
    alphas = [0, 0.099, 0.1, 0.499, 0.5, 1]
    assert [round(6 * curve.error_at(alpha)) for alpha in alphas] == [3, 3, 4, 4, 5, 5]
    assert curve.accuracy_at(0.5) == pytest.approx(1 / 6)
    assert curve.robust_error == pytest.approx(5 / 6)
    assert curve.robust_error_with_detection == pytest.approx(3 / 6)
    assert curve.p_rej == pytest.approx(1 / 6)


def test_a_number_gives_a_number_and_a_tensor_a_tensor(curve):
    grid = torch.tensor([[0.0, 0.1], [0.5, 1.0]])
    errors = curve.error_at(grid)
    assert isinstance(curve.error_at(0), float)
    assert errors.shape == (2, 2)
    assert errors.dtype == torch.float64
    assert errors.flatten().tolist() == [curve.error_at(a) for a in (0, 0.1, 0.5, 1)]
    torch.testing.assert_close(curve.accuracy_at(grid), 1 - errors)
    assert curve.error_at(torch.tensor([0, 1])).tolist() == [curve.error_at(0), curve.error_at(1)]


ALPHAS = st.integers(0, 999).map(lambda part: (part + 0.5) / 1000)


@settings(max_examples=50)
@given(findings(), st.lists(ALPHAS, max_size=5))
def test_the_curve_is_its_definition(records, alphas):
    """Distances are thousandths of eps and alphas halfway between, so rounding has no say."""
    curve = RobustnessCurve(records)
    for alpha in [0.0, *alphas, 1.0]:
        limit = alpha * records.eps if alpha < 1 else INF
        errors = [
            outer < INF or (radius <= limit and radius < INF)
            for outer, radius in zip(
                records.outer_distance.tolist(), records.rejected_radius.tolist(), strict=True
            )
        ]
        assert curve.error_at(alpha) == pytest.approx(sum(errors) / len(errors))


@settings(max_examples=50)
@given(findings(), st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_the_curve_never_falls(records, alphas):
    curve = RobustnessCurve(records)
    alphas = sorted({0.0, 1.0, *alphas})
    assert not falls([curve.error_at(alpha) for alpha in alphas])
    assert not falls(curve.interpolated_error_at(torch.tensor(alphas)).tolist())


@settings(max_examples=25)
@given(findings())
def test_ends_of_the_curve_are_the_known_metrics(records):
    curve = RobustnessCurve(records)
    broken = records.outer_broken
    error = broken | records.rejected_radius.isfinite()
    assert curve.robust_error == pytest.approx(error.double().mean().item())
    clean_error = broken | (records.clean_label != records.label)
    assert curve.robust_error_with_detection == pytest.approx(clean_error.double().mean().item())


@given(st.lists(st.sampled_from([0.0, 0.1, INF]), min_size=1, max_size=8))
def test_a_rule_that_never_rejects_gives_a_flat_curve(outer):
    curve = RobustnessCurve(make(outer, [INF] * len(outer)))
    errors = curve.error_at(torch.linspace(0, 1, 11))
    assert errors.tolist() == [sum(d < INF for d in outer) / len(outer)] * 11
    for loss in PAPER_LOSSES:
        assert curve.total_robust_loss(loss) == pytest.approx(errors[0].item())


@pytest.mark.parametrize("eps", [8 / 255, 0.3])
@pytest.mark.parametrize("alpha", PAPER_ALPHAS[1:])
def test_a_point_on_the_surface_of_its_ball_counts_inside_it(eps, alpha):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(64, 40, generator=generator)
    far = torch.rand(x.shape, generator=generator).round()
    radius = alpha * eps
    z = torch.minimum(torch.maximum(far, x - radius), x + radius)
    for dtype in (torch.float32, torch.float64):
        distance = (z.to(dtype) - x.to(dtype)).abs().amax(dim=1).tolist()
        curve = RobustnessCurve(make([INF] * 64, distance, eps=eps))
        assert curve.error_at(alpha) == 1
        assert curve.error_at(torch.tensor(alpha)).item() == 1  # alpha itself in float32
        assert curve.total_robust_loss(f"step:{alpha}") == 1
        assert curve.error_at(0.99 * alpha) == 0


def test_nothing_but_the_clean_input_is_at_distance_zero():
    curve = RobustnessCurve(make([INF] * 2, [0, rounding(0.2) / 10], eps=0.2))
    assert curve.error_at(0) == 0.5
    assert curve.total_robust_loss("step:0") == 0.5
    assert curve.error_at(1e-6) == 1


def test_error_within_is_in_pixels(curve):
    assert curve.error_within(0.1) == curve.error_at(0.5)
    radii = torch.tensor([0.0, 0.02, 0.2])
    assert curve.error_within(radii).tolist() == curve.error_at(radii / 0.2).tolist()


def test_interpolation_joins_tabulated_errors_by_lines():
    records = make([INF] * 4, [0, 0.05, 0.1, 0.2], eps=0.2)
    curve = RobustnessCurve(records, alphas=(0.0, 0.5, 1.0))
    assert curve.interpolated_error_at(0.5) == 0.75
    assert curve.interpolated_error_at(0.25) == pytest.approx((0.25 + 0.75) / 2)
    assert curve.interpolated_error_at(torch.tensor([0.75, 1])).tolist() == [0.875, 1.0]
    assert curve.error_at(0.24) == 0.25  # the exact curve knows better


def test_the_tabulated_alphas_change_no_exact_figure(curve):
    coarse = RobustnessCurve(curve.records, alphas=(0.5,))
    for loss in PAPER_LOSSES:
        assert coarse.total_robust_loss(loss) == curve.total_robust_loss(loss)
    assert coarse.error_at(0.1) == curve.error_at(0.1)
    assert [row["alpha"] for row in coarse.table()] == [0, 0.5, 1]


def test_a_losss_interval_leaves_the_global_generator_alone(curve):
    before = torch.get_rng_state()
    loss = curve.total_robust_loss_interval("ramp:1")
    assert loss == curve.total_robust_loss_interval("ramp:1")
    assert torch.equal(torch.get_rng_state(), before)


def test_every_interval_has_width_where_all_images_agree():
    safe = RobustnessCurve(make([INF] * 20, [INF] * 20))
    high = pytest.approx(1 - 0.025 ** (1 / 20))
    assert (safe.error_interval(0.5).low, safe.error_interval(0.5).high) == (0, high)
    assert all((row["error_low"], row["error_high"]) == (0, high) for row in safe.table())
    assert safe.total_robust_loss_interval("ramp:2").high == high


def test_intervals_count_rejected_clean_inputs_at_every_alpha():
    silent = RobustnessCurve(make([INF] * 3, [0] * 3))
    assert all(row["error_high"] == 1 for row in silent.table())
    assert silent.error_interval(0).low == pytest.approx(0.025 ** (1 / 3))


def test_a_step_losss_interval_is_that_of_the_error(curve):
    loss = curve.total_robust_loss_interval("step:0.5")
    error = curve.error_interval(0.5)
    assert (loss.low, loss.high) == (error.low, error.high)


def test_the_band_holds_the_intervals(curve):
    band = curve.error_band(torch.tensor([0.0, 0.5]), level=0.9)
    single = curve.error_interval(0.5, level=0.9)
    assert (band.low[1].item(), band.high[1].item()) == (single.low, single.high)
    assert band.level == 0.9


def test_table_has_one_row_an_alpha(curve):
    rows = curve.table()
    assert [row["alpha"] for row in rows] == list(PAPER_ALPHAS)
    for row in rows:
        assert row["radius"] == pytest.approx(row["alpha"] * 0.2)
        assert row["error"] == curve.error_at(row["alpha"])
        assert row["accuracy"] == pytest.approx(1 - row["error"])
        assert row["error_low"] <= row["error"] <= row["error_high"]


def test_frame_is_the_table(curve):
    frame = pytest.importorskip("pandas").DataFrame(curve.table())
    assert curve.to_frame().equals(frame)


def test_frame_without_pandas_says_what_to_install(curve, monkeypatch):
    def missing(name, *rest):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cpr-wrap\[pandas\]'"):
        curve.to_frame()


def test_summary_is_plain_and_agrees_with_the_curve(curve):
    summary = curve.summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["images"] == 6
    assert summary["accuracy_at"]["0.5"] == curve.accuracy_at(0.5)
    assert summary["total_robust_loss"]["ramp:2"] == curve.total_robust_loss("ramp:2")
    assert summary["first_broken_by"] == {"clean": 1, "HCMOA": 1}
    detection = summary["clean"]["robust_accuracy_with_detection"]
    assert detection == pytest.approx(curve.accuracy_at(0))


def test_summary_of_a_model_that_rejects_everything_is_still_json():
    summary = RobustnessCurve(make([INF], [0])).summary()
    assert summary["clean"]["accuracy_with_rejection"] is None
    assert json.dumps(summary, allow_nan=False)


def test_it_shows_itself(curve):
    lines = repr(curve).splitlines()
    assert lines[0] == "RobustnessCurve(6 images, Linf eps=0.2)"
    assert lines[1].split() == ["alpha", *(f"{alpha:g}" for alpha in PAPER_ALPHAS)]
    assert lines[2].split()[1:3] == ["50.0%", "50.0%"]
    assert len(lines[1]) == len(lines[2])
    html = curve._repr_html_()
    assert html.count("%") == len(PAPER_ALPHAS)
    assert "50.0%" in html


def test_html_escapes_what_it_was_given():
    curve = RobustnessCurve(make([INF], [INF], norm="<b>"))
    assert "<b>" not in curve._repr_html_()


def test_plot_draws_every_step(curve):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    ax = figure.subplots()
    assert curve.plot(ax, label="cpr") is ax
    x, y = ax.lines[0].get_data()
    assert list(x) == pytest.approx([0, 0.1, 0.2, 0.5, 1], abs=1e-5)
    assert [round(6 * value) for value in y] == [3, 2, 2, 1, 1]
    assert ax.lines[0].get_drawstyle() == "steps-post"
    assert len(ax.collections) == 1
    assert ax.lines[0].get_label() == "cpr"


def test_plot_makes_its_own_axes(curve, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    ax = curve.plot()
    assert len(ax.lines) == 1
    pyplot.close(ax.figure)


def test_matplotlib_and_pandas_are_not_needed_for_figures(curve, monkeypatch):
    real = builtins.__import__

    def guarded(name, *rest, **more):
        assert name.split(".")[0] not in ("matplotlib", "pandas")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert curve.summary()
    assert curve.table()


@pytest.mark.parametrize("alpha", [-0.01, 1.01, math.nan, torch.tensor([0.5, 2.0])])
def test_alphas_outside_the_range_are_refused(curve, alpha):
    with pytest.raises(ValueError, match=r"alpha: expected fractions of eps in \[0, 1\]"):
        curve.error_at(alpha)


@pytest.mark.parametrize("alphas", [(), (-0.1, 0.5), (0.5, 1.5), (math.nan,), "ab", 3, None])
def test_alphas_that_are_no_shares_are_refused(curve, alphas):
    with pytest.raises(ValueError, match=r"alphas: expected shares of eps in \[0, 1\]"):
        RobustnessCurve(curve.records, alphas=alphas)


def test_alphas_are_sorted_and_completed(curve):
    assert RobustnessCurve(curve.records, alphas=(0.5, 0.05, 0.5)).alphas == (0, 0.05, 0.5, 1)


def test_what_cannot_be_computed_is_refused(curve):
    with pytest.raises(ValueError, match="records of at least one image"):
        RobustnessCurve(curve.records.subset([]))
    with pytest.raises(ValueError, match="method: expected 'exact' or 'trapezoid', got 'simpson'"):
        curve.total_robust_loss("ramp:1", method="simpson")
    with pytest.raises(ValueError, match="one loss for all images; use method='exact'"):
        curve.total_robust_loss(lambda r, i: 1.0, method="trapezoid", per_image=True)
