"""`--set name=value`: settings of any rule, by the rule's own types."""

from __future__ import annotations

import pytest
from typer import BadParameter

from cpr_wrap.cli._settings import rule_options
from cpr_wrap.rules import Confidence, Consistency


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("radius=2/255", {"radius": 2 / 255}),
        ("steps=7", {"steps": 7}),
        ("step-size=none", {"step_size": None}),
        ("step_size=0.01", {"step_size": 0.01}),
        ("norm=L2", {"norm": "L2"}),
        ("keep = best", {"keep": "best"}),
        ("threshold=-0.5", {"threshold": -0.5}),
    ],
)
def test_values_are_read_by_their_types(pair, expected):
    assert rule_options(Consistency, [pair]) == expected


@pytest.mark.parametrize(
    ("rule", "pair", "text"),
    [
        (Consistency, "radios=1", "has no setting 'radios'. Did you mean 'radius'"),
        (Confidence, "radius=1", "rule 'confidence' has no setting 'radius'. Its settings: thresh"),
        (Consistency, "steps=1.5", "steps: expected a whole number, got '1.5'"),
        (Consistency, "radius=wide", "radius: expected a number, got 'wide'"),
        (Consistency, "keep=all", "keep: expected one of last, best, got 'all'"),
        (Consistency, "radius", "expected NAME=VALUE, got 'radius'"),
    ],
)
def test_what_cannot_be_read_is_said(rule, pair, text):
    with pytest.raises(BadParameter) as caught:
        rule_options(rule, [pair])
    assert text in str(caught.value)
