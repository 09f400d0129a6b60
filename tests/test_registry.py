from __future__ import annotations

import pytest

from cpr_wrap._registry import Registry


@pytest.fixture
def colours():
    registry = Registry("colour")
    registry.register("green")("#0f0")
    registry.register("blue")("#00f")
    return registry


def test_finds_by_name_and_iterates_sorted(colours):
    assert colours["green"] == "#0f0"
    assert list(colours) == ["blue", "green"]
    assert len(colours) == 2
    assert "blue" in colours
    assert "red" not in colours


def test_register_returns_its_argument():
    registry = Registry("function")

    @registry.register("twice")
    def twice(x):
        return 2 * x

    assert twice(3) == registry["twice"](3) == 6


def test_refuses_duplicates_and_keeps_the_first(colours):
    with pytest.raises(ValueError, match="colour 'green' is registered already"):
        colours.register("green")("#0a0")
    assert colours["green"] == "#0f0"


def test_suggests_a_near_miss(colours):
    with pytest.raises(
        LookupError, match=r"unknown colour 'gren'\. Did you mean 'green'"
    ) as caught:
        colours["gren"]
    assert not isinstance(caught.value, KeyError)  # prints its text as a quoted repr


def test_lists_what_is_known_when_nothing_is_near(colours):
    with pytest.raises(LookupError, match=r"unknown colour 'zzz'\. Known: blue, green"):
        colours["zzz"]


def test_lists_many_names_too(colours):
    for number in range(20):
        colours.register(f"grey{number:02}")("#888")
    with pytest.raises(LookupError, match=r"'zzz'\. Known: blue, green, grey00, .*, grey19$"):
        colours["zzz"]


def test_suggests_whatever_the_case(colours):
    with pytest.raises(LookupError, match="Did you mean 'blue'"):
        colours["BLUE"]


def test_a_name_that_is_no_text_is_unknown_too(colours):
    with pytest.raises(LookupError, match="unknown colour None"):
        colours[None]


def test_get_gives_the_default_for_a_name_nobody_entered():
    registry: Registry[int] = Registry("number")
    registry.register("one")(1)
    assert (registry.get("one"), registry.get("two"), registry.get("two", 2)) == (1, None, 2)
