from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
import torch

from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report.charts import (
    COLOURS,
    colour,
    curve_chart,
    jumps,
    radius_chart,
    radius_counts,
    read_out,
)
from cpr_wrap.report.confidence import grid
from cpr_wrap.report.run import Run
from cpr_wrap.report.svg import Frame, area_path, step_path
from tests.metrics.making import make
from tests.report.making import INF, RADIUS, full_curve, full_details, plain

FRAME = Frame(width=174, height=158, left=60, right=14, above=12, below=46)  # 100 by 100 inside


def drawn(path):
    """Corners of a step path as (x, y) in units of the frame."""
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
        corners.append(((x - 60) / 100, 1 - (y - 12) / 100))
    return corners


def test_frame_maps_the_corners():
    assert (FRAME.x(0), FRAME.x(1)) == (60, 160)
    assert (FRAME.y(0), FRAME.y(1)) == (112, 12)


def test_a_step_path_keeps_each_value_up_to_the_next_place():
    path = step_path(FRAME, [0, 0.25, 0.5, 1], [1, 0.5, 0.5, 0.25])
    corners = [(0, 1), (0.25, 1), (0.25, 0.5), (0.5, 0.5), (1, 0.5), (1, 0.25)]
    assert torch.allclose(torch.tensor(drawn(path)), torch.tensor(corners))


def test_an_area_goes_forth_and_back():
    path = area_path(FRAME, [0, 1], [0, 0.5], [1, 0.75])
    assert path == "M60 12L160 37L160 62L60 112Z"


def test_jumps_are_those_of_the_step_function():
    curve = plain()
    alphas, heights = jumps(curve)
    assert alphas == pytest.approx([0, 0.25, 1, 1], abs=1e-5)
    assert heights == [0.5, 0.25, 0.0, 0.0]
    # Every fall of the exact curve is there: between jumps it is constant.
    for left, right, height in zip(alphas, alphas[1:], heights, strict=False):
        if right > left:
            assert curve.accuracy_at((left + right) / 2) == height


def pictures(markup):
    return ET.fromstring(f"<all>{markup}</all>").findall("svg")


def test_the_curve_chart_comes_in_two_sizes_with_all_its_lines():
    runs = [Run.of(full_curve()), Run.of(plain())]
    wide, narrow = pictures(curve_chart(runs, ["one", "other"]))
    for picture, kind in ((wide, "wide"), (narrow, "narrow")):
        assert picture.get("class") == f"chart {kind}"
        classes = [path.get("class") for path in picture.iter("path")]
        # The second run has no distances to the boundary, the first not what Theorem 2 asks for.
        assert classes == ["band c0", "band c1", "theorem1 c0", "curve c0", "curve c1"]
        assert "one falls from" in picture.get("aria-label")


def test_names_cannot_break_the_picture():
    (picture, _) = pictures(curve_chart([Run.of(plain())], ['"><script>']))
    assert picture.find("title").text.startswith('Robustness with rejection over alpha: "><script>')


def test_more_runs_than_colours_begin_anew():
    assert colour(0) == colour(COLOURS) == "c0"


def test_the_read_out_is_the_curve_with_its_interval():
    curve = full_curve()
    rows = read_out(Run.of(curve))
    assert len(rows) == 101
    for alpha, (value, low, high) in zip(grid().tolist(), rows, strict=True):
        assert value == pytest.approx(curve.accuracy_at(alpha), abs=1e-4)
        assert low <= value <= high


def test_radius_counts_by_hand():
    records = make(
        outer=[INF, INF, INF, 0.1, INF, INF],
        rejected=[0.0, 0.01, 0.2, 0.05, INF, 0.105],
        eps=0.2,
    )
    counts = radius_counts(Run.of(RobustnessCurve(records)))
    assert (counts["clean"], counts["none"], counts["broken"]) == (1, 1, 1)
    bins = [0] * 20
    bins[0] = bins[19] = bins[10] = 1  # 0.05, 1 and 0.525 of eps; a bin owns its upper edge
    assert counts["bins"] == bins
    assert counts["ideal"] is None


def test_ideal_radii_are_distances_less_the_radius():
    records = make(
        outer=[INF] * 4,
        rejected=[0.0, 0.2, INF, INF],
        eps=0.3,
        boundary_distance=torch.tensor([0.05, 0.25, 0.35, INF], dtype=torch.float64),
    )
    run = Run.of(RobustnessCurve(records, details=full_details()))
    counts = radius_counts(run)
    assert counts["ideal_clean"] == 1
    assert counts["ideal_none"] == 1
    places = [math.ceil((d - RADIUS) / 0.3 * 20 - 1e-4) - 1 for d in (0.25, 0.35)]
    assert [k for k, count in enumerate(counts["ideal"]) if count] == places


def test_every_image_is_counted_once():
    run = Run.of(full_curve(count=200))
    counts = radius_counts(run)
    whole = 200 - counts["broken"]
    assert counts["clean"] + sum(counts["bins"]) + counts["none"] == whole
    assert counts["ideal_clean"] + sum(counts["ideal"]) + counts["ideal_none"] == whole


def test_the_radius_chart_has_a_bar_for_each_bin_that_is_not_empty():
    run = Run.of(full_curve(count=200))
    counts = radius_counts(run)["bins"]
    for picture in pictures(radius_chart(run, place=2)):
        bars = [bar for bar in picture.iter("rect") if bar.get("class") == "bar c2"]
        assert len(bars) == sum(count > 0 for count in counts)
        heights = [float(bar.get("height")) for bar in bars]
        tallest = max(heights) / max(counts)
        expected = [count * tallest for count in counts if count]
        assert heights == pytest.approx(expected, abs=0.05)
        assert [path.get("class") for path in picture.iter("path")] == ["ideal"]


def test_an_empty_histogram_still_has_axes():
    (picture, _) = pictures(radius_chart(Run.of(plain(outer=[INF], rejected=[INF]))))
    assert not list(picture.iter("rect"))
    ticks = [text.text for text in picture.iter("text") if text.get("class") == "tick"]
    assert ticks[:2] == ["0", "1"]


@pytest.mark.parametrize("count", [1, 4, 7, 23, 99, 1000])
def test_the_axis_reaches_over_the_tallest_bar_with_whole_numbers(count):
    run = Run.of(plain(outer=[INF] * count, rejected=[0.1] * count))
    (picture, _) = pictures(radius_chart(run))
    ticks = [text for text in picture.iter("text") if text.get("class") == "tick"]
    counts = [int(text.text) for text in ticks if text.get("text-anchor") == "end"]
    assert counts[-1] >= count
    assert len(counts) <= 6
