"""Numbers as people write them."""

from __future__ import annotations

import pytest
import typer

from cpr_wrap.cli.options import fraction, fractions, whole_numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [("8/255", 8 / 255), ("0.3", 0.3), (".5", 0.5), ("1e-3", 0.001), ("0", 0.0), (" 2 / 4 ", 0.5)],
)
def test_fraction_reads(text, value):
    assert fraction(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "8/", "/255", "8/0", "1/2/3", "-1", "nan", "inf", "8/nan", "1e999"]
)
def test_fraction_refuses(text):
    with pytest.raises(typer.BadParameter, match=r"expected a number like 0\.03 or 8/255, got "):
        fraction(text)


def test_fractions_reads_a_list():
    assert fractions("0, 1/20,1") == (0.0, 0.05, 1.0)


def test_fractions_refuses_a_gap():
    with pytest.raises(typer.BadParameter, match="expected a number"):
        fractions("0,,1")


def test_a_range_of_images_has_both_its_ends():
    assert whole_numbers("3, 8-10") == [3, 8, 9, 10]


@pytest.mark.parametrize("text", ["", "3,x", "-3", "1.5", "3,9-5", "4-"])
def test_numbers_of_images_that_cannot_be(text):
    with pytest.raises(typer.BadParameter, match="expected whole numbers like 3,8,20-29"):
        whole_numbers(text)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--eps", "8/x"), "expected a number like 0.03 or 8/255, got '8/x'"),
        (("--alphas", "0,a"), "expected a number like 0.03 or 8/255, got 'a'"),
        (("--norm", "L3"), "L3"),
        (("--device", "tpu"), "tpu"),
        (("--num", "0"), "--num"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_wrong_usage_exits_with_2(words, complaint, type_command):
    answer = type_command("curve", "local:nowhere", *words)
    assert answer.exit_code == 2
    assert complaint in answer.stderr
    assert answer.stdout == ""
