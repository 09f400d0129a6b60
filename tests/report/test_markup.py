from __future__ import annotations

import json

import pytest

from cpr_wrap.report.markup import Markup, embedded_json, join, tag, verbatim

EVIL = """</script><img src=x onerror="evil=1">'&"""


def test_text_is_escaped_in_children_and_attributes():
    element = tag("p", EVIL, title=EVIL)
    assert "<img" not in element
    assert element.count('"') == 2  # those around the attribute


def test_markup_is_not_escaped_again():
    assert tag("p", tag("b", "a & b"), " ", 3) == "<p><b>a &amp; b</b> 3</p>"
    assert join("a<", tag("br")) == "a&lt;<br>"
    assert isinstance(join("a"), Markup)


def test_attributes_may_be_absent_alone_or_numbers():
    assert tag("input", required=True, hidden=False, name=None, min=0) == '<input required min="0">'
    assert tag("rect", x=1 / 3, class_="a", aria_label="b") == (
        '<rect x="0.333333" class="a" aria-label="b"></rect>'
    )


def test_children_nest_and_none_is_nothing():
    assert tag("ul", [tag("li", "a"), None, (tag("li", "b"),)]) == "<ul><li>a</li><li>b</li></ul>"


def test_embedded_json_cannot_end_its_element():
    element = embedded_json([EVIL], "data")
    assert element.count("</script") == 1
    inside = element.split(">", 1)[1].removesuffix("</script>")
    assert json.loads(inside) == [EVIL]


def test_verbatim_text_must_not_end_its_element():
    assert verbatim("a < b", "script") == "<script>a < b</script>"
    with pytest.raises(ValueError, match="expected text without </script"):
        verbatim("x = '</SCRIPT>'", "script")
