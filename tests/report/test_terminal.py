from __future__ import annotations

import pytest

from cpr_wrap.report.terminal import draw_terminal, draws_braille
from tests.report.making import INF, full_curve, plain

LEFT = 6  # columns of the vertical axis


def rows_of(drawing, height):
    return [line[LEFT:] for line in drawing.splitlines()[1 : 1 + height]]


def height_of(rows, column, marks):
    """The lowest row with a mark in a column, as a share of the plot's height."""
    hits = [r for r, line in enumerate(rows) if column < len(line) and line[column] in marks]
    return 1 - max(hits) / (len(rows) - 1)


def test_the_drawing_is_where_the_curve_is():
    # Half the images at 0.25 · eps, all at 0.75 · eps.
    curve = plain(outer=[INF] * 4, rejected=[0.05, 0.05, 0.15, 0.15], eps=0.2)
    rows = rows_of(draw_terminal(curve, width=LEFT + 41, height=11, ascii=True), 11)
    for column in range(41):
        expected = curve.accuracy_at(column / 40)
        assert height_of(rows, column, "*") == pytest.approx(expected), column


def test_braille_says_the_same_as_ascii():
    curve = full_curve()
    width, height = LEFT + 60, 12
    dots = {chr(code) for code in range(0x2801, 0x2900)}
    braille = rows_of(draw_terminal(curve, width=width, height=height), height)
    for column in range(60):
        expected = curve.accuracy_at(min(1, (2 * column + 1) / 119))
        assert height_of(braille, column, dots) == pytest.approx(expected, abs=1.5 / height)


@pytest.mark.parametrize("only_ascii", [False, True])
@pytest.mark.parametrize(("width", "height"), [(32, 5), (40, 8), (72, 16), (120, 30)])
def test_it_keeps_to_its_width(only_ascii, width, height):
    one, other = full_curve(), full_curve("a rather long name " * 3, seed=1)
    for drawing in (
        draw_terminal(one, width=width, height=height, ascii=only_ascii),
        draw_terminal([one, other], ["x", "y" * 50], width=width, height=height, ascii=only_ascii),
    ):
        assert max(map(len, drawing.splitlines())) <= width
        if only_ascii:
            assert drawing.isascii()


def test_axes_have_numbers():
    lines = draw_terminal(plain(), height=9).splitlines()
    assert lines[0].strip() == "robustness with rejection"
    assert [line[:5].strip() for line in lines[1:10:2]] == ["100%", "75%", "50%", "25%", "0%"]
    assert lines[11].split() == ["0", "0.25", "0.5", "0.75", "1"]


def test_several_curves_carry_letters_and_have_a_legend():
    curves = [full_curve(seed=seed, weakness=1 + seed) for seed in range(3)]
    drawing = draw_terminal(curves, ["AT+CPR", "TRADES+CPR", "CCAT"])
    plot = "".join(rows_of(drawing, 16))
    for letter, name, curve in zip("abc", ("AT+CPR", "TRADES+CPR", "CCAT"), curves, strict=True):
        assert letter in plot
        (line,) = [line for line in drawing.splitlines() if line.strip().startswith(f"{letter}  ")]
        assert name in line
        assert f"{curve.accuracy_at(1.0):.1%} at 1" in line


def test_one_curve_has_no_letters():
    assert not set("abc") & set("".join(rows_of(draw_terminal(full_curve()), 16)))


@pytest.mark.parametrize(
    ("encoding", "answer"),
    [("utf-8", True), ("ascii", False), ("latin-1", False), (None, False), ("no-such", False)],
)
def test_which_encodings_hold_braille(encoding, answer):
    assert draws_braille(encoding) is answer


def test_mistaken_calls():
    curve = plain()
    with pytest.raises(ValueError, match="expected 1 to 26 curves to draw, got 0"):
        draw_terminal([])
    with pytest.raises(ValueError, match="names: expected 1, one a curve, got 2"):
        draw_terminal(curve, ["a", "b"])
    with pytest.raises(ValueError, match="at least 32 columns and 5 rows, got 10 and 16"):
        draw_terminal(curve, width=10)
