from __future__ import annotations

import pytest

from cpr_wrap.report.plots import curve_figure, write_figure
from tests.report.making import full_curve, plain


def test_lines_are_the_curves():
    curves = [full_curve(), plain(name="other", eps=0.3)]
    (axes,) = curve_figure(curves).axes
    assert [line.get_label() for line in axes.lines] == ["AT+CPR", "other"]
    for line, curve in zip(axes.lines, curves, strict=True):
        assert line.get_drawstyle() == "steps-post"
        for alpha, height in line.get_xydata()[:-1]:
            assert height == pytest.approx(curve.accuracy_at(min(1.0, alpha + 1e-9)))
    assert len(axes.collections) == 2  # a band each
    assert axes.get_legend() is not None
    apart = curve_figure([full_curve(), plain(name="other")]).axes
    assert [each.get_legend() is not None for each in apart] == [True, True]


def test_one_curve_needs_no_legend_and_bands_are_optional():
    (axes,) = curve_figure(plain(), band=False).axes
    assert axes.get_legend() is None
    assert not axes.collections


def test_theory_is_drawn_where_it_applies():
    (axes,) = curve_figure(full_curve(), ["AT"], theory=True).axes
    # Theorem 2 does not apply: the network has clean errors.
    assert [line.get_label() for line in axes.lines] == ["AT", "AT+CPR: Theorem 1, at least"]


def test_many_runs_have_an_axis_for_each_threat_no_bands_and_a_legend_inside_the_canvas():
    names = [f"a-network-with-a-long-name+cpr-radius=0.{number}" for number in range(10)]
    runs = [full_curve(name, eps=0.3 if number % 2 else 0.4) for number, name in enumerate(names)]
    figure = curve_figure(runs)
    assert [axes.get_title() for axes in figure.axes] == ["Linf 0.4", "Linf 0.3"]
    assert all(not axes.collections for axes in figure.axes)
    assert curve_figure(runs[:2]).axes[0].collections
    figure.draw_without_rendering()
    (legend,) = figure.legends
    canvas, box = figure.bbox, legend.get_window_extent()
    assert len(legend.get_texts()) == 10
    assert (box.x0 >= 0, box.y0 >= 0, box.x1 <= canvas.x1, box.y1 <= canvas.y1) == (True,) * 4


@pytest.mark.parametrize("theory", [False, True])
@pytest.mark.parametrize("letters", [20, 45, 90])
def test_long_names_leave_the_curves_their_room(letters, theory):
    runs = [full_curve("a" * letters), full_curve("b" * letters, seed=1)]
    figure = curve_figure(runs, theory=theory)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (legend,) = figure.legends or [axes.get_legend()]
    assert len(legend.get_texts()) == (4 if theory else 2)
    assert axes.get_position().width > 0.7
    assert axes.get_window_extent().height / figure.dpi > 2
    assert legend.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.filterwarnings("ignore:No artists with labels")
def test_names_that_matplotlib_leaves_out_of_a_legend():
    figure = curve_figure([full_curve("_a"), full_curve("_b", seed=1)])
    figure.draw_without_rendering()
    assert len(figure.axes[0].lines) == 2


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_files_and_the_same_bytes_each_time(tmp_path, suffix, start):
    paths = [
        write_figure(curve_figure(plain()), tmp_path / "new" / f"{k}{suffix}", dpi=50)
        for k in range(2)
    ]
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(start)
    assert first == second


def test_mistaken_calls(tmp_path):
    with pytest.raises(ValueError, match="names: expected 1, one per curve, got 2"):
        curve_figure(plain(), ["a", "b"])
    with pytest.raises(ValueError, match=r"ends in .png, .svg, .pdf, got 'x.gif'"):
        write_figure(None, tmp_path / "x.gif")
