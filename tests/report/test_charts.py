from __future__ import annotations

import math
import re

import pytest
import torch

from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report import charts
from cpr_wrap.report.charts import BINS, COLORS, curve_shapes, marks, radii_of, read_out
from cpr_wrap.report.run import Run, grid
from tests.metrics.making import make
from tests.report.making import INF, RADIUS, full_curve, full_details, plain


def drawn(path):
    """Corners of a step path as (x, height) in the unit square."""
    x = y = 0.0
    corners = []
    for command, numbers in re.findall(r"([MHV])([-\d. ]+)", path):
        values = [float(number) for number in numbers.split()]
        if command == "M":
            x, y = values
        elif command == "H":
            (x,) = values
        else:
            (y,) = values
        corners.append((x, 1 - y))
    return corners


def test_jumps_are_those_of_the_step_function():
    curve = plain()
    alphas, heights = curve.jumps()
    assert alphas == pytest.approx([0, 0.25, 1, 1], abs=1e-5)
    assert heights == [0.5, 0.25, 0.0, 0.0]
    # Every fall of the exact curve is there: between jumps it is constant.
    for left, right, height in zip(alphas, alphas[1:], heights, strict=False):
        if right > left:
            assert curve.accuracy_at((left + right) / 2) == height


def test_the_line_is_the_step_function():
    """Half the images at a quarter of eps, the others at three quarters."""
    curve = plain(outer=[INF] * 4, rejected=[0.05, 0.05, 0.15, 0.15], eps=0.2)
    kind, path = list(curve_shapes(Run.of(curve)).items())[-1]
    assert kind == "curve"
    corners = [(0, 1), (0.25, 1), (0.25, 0.5), (0.75, 0.5), (0.75, 0), (1, 0)]
    assert torch.tensor(drawn(path)).numpy() == pytest.approx(
        torch.tensor(corners).numpy(), abs=1e-4
    )


def test_the_band_is_the_interval_forth_and_back():
    run = Run.of(plain())
    kind, path = next(iter(curve_shapes(run).items()))
    assert kind == "band"
    corners = [tuple(map(float, c.split())) for c in path[1:-1].split("L")]
    low, high = run.band
    assert [1 - y for _, y in corners] == pytest.approx([*high, *low[::-1]], abs=1e-4)
    assert [x for x, _ in corners[:101]] == pytest.approx(grid().tolist())


def test_theory_is_drawn_where_it_applies_and_bands_where_wanted():
    # The first has not what Theorem 2 asks for, the second no distances to the boundary.
    assert list(curve_shapes(Run.of(full_curve()))) == ["band", "theorem1", "curve"]
    assert list(curve_shapes(Run.of(plain()), band=False)) == ["curve"]
    assert list(curve_shapes(Run.of(full_curve()), theory=False)) == ["band", "curve"]


def test_every_run_up_to_32_has_its_own_mark():
    assert marks(0) == "c0 d0"
    assert len({marks(place) for place in range(4 * COLORS)}) == 4 * COLORS


def test_the_read_out_is_the_curve_with_its_interval():
    curve = full_curve()
    rows = read_out(Run.of(curve))
    assert len(rows) == 101
    for alpha, (value, low, high) in zip(grid().tolist(), rows, strict=True):
        assert value == pytest.approx(curve.accuracy_at(alpha), abs=1e-4)
        assert low <= value <= high


def test_radii_by_hand():
    records = make(
        outer=[INF, INF, INF, 0.1, INF, INF],
        rejected=[0.0, 0.01, 0.2, 0.05, INF, 0.105],
        eps=0.2,
    )
    radii = radii_of(Run.of(RobustnessCurve(records)))
    assert (radii.found.clean, radii.found.none, radii.broken) == (1, 1, 1)
    bins = [0] * 20
    bins[0] = bins[19] = bins[10] = 1  # 0.05, 1 and 0.525 of eps; a bin owns its upper edge
    assert radii.found.bins == bins
    assert radii.ideal is None


def test_ideal_radii_are_distances_less_the_radius():
    records = make(
        outer=[INF] * 4,
        rejected=[0.0, 0.2, INF, INF],
        eps=0.3,
        boundary_distance=torch.tensor([0.05, 0.25, 0.35, INF], dtype=torch.float64),
    )
    ideal = radii_of(Run.of(RobustnessCurve(records, **full_details()))).ideal
    assert (ideal.clean, ideal.none) == (1, 1)
    places = [math.ceil((d - RADIUS) / 0.3 * 20 - 1e-4) - 1 for d in (0.25, 0.35)]
    assert [k for k, count in enumerate(ideal.bins) if count] == places


def test_every_image_is_counted_once():
    radii = radii_of(Run.of(full_curve(count=200)))
    for counts in (radii.found, radii.ideal):
        assert counts.clean + sum(counts.bins) + counts.none + radii.broken == 200


def test_the_outline_has_the_height_of_each_bin():
    radii = radii_of(Run.of(full_curve(count=200)))
    corners = drawn(radii.outline)
    for k, count in enumerate(radii.ideal.bins):
        middle = (k + 0.5) / BINS
        before = [height for x, height in corners if x < middle]
        assert before[-1] * radii.ticks[-1] == pytest.approx(count, abs=1e-2)


@pytest.mark.parametrize("count", [0, 1, 4, 7, 23, 99, 1000])
def test_the_axis_reaches_over_the_tallest_bar_with_whole_numbers(count):
    rejected = [0.1] * count or [INF]
    ticks = radii_of(Run.of(plain(outer=[INF] * len(rejected), rejected=rejected))).ticks
    assert ticks[-1] >= max(1, count)
    assert 2 <= len(ticks) <= 6
    assert ticks == sorted({int(tick) for tick in ticks})


def test_every_threat_model_has_its_axis_and_shared_things_are_no_filter():
    runs = [Run.of(full_curve(name, eps=eps)) for name, eps in (("a", 0.3), ("b", 0.4), ("c", 0.3))]
    assert charts.by_threat(runs) == [("Linf 0.3", [0, 2]), ("Linf 0.4", [1])]
    assert charts.facets(runs)["threat"] == ["Linf 0.3", "Linf 0.4", "Linf 0.3"]
    assert "rule" not in charts.facets(runs)
    assert charts.facets(runs[:1]) == {}
