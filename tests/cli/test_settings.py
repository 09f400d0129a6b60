"""`--set name=value`: settings of any rule, by the rule's own types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pytest
from typer import BadParameter

from cpr_wrap.cli._load import rule_options
from cpr_wrap.rules import Confidence, Consistency

if TYPE_CHECKING:
    from torch import nn


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
        (Consistency, "steps=1.5", "steps: Input should be a valid integer"),
        (Consistency, "radius=wide", "radius: Input should be a valid number"),
        (Consistency, "keep=all", "keep: Input should be 'last' or 'best', got 'all'"),
        (Consistency, "radius=nan", "radius: Input should be a finite number, got 'nan'"),
        (Consistency, "step_size=inf", "step_size: Input should be a finite number, got 'inf'"),
        (Consistency, "radius", "expected NAME=VALUE, got 'radius'"),
    ],
)
def test_what_cannot_be_read_is_said(rule, pair, text):
    with pytest.raises(BadParameter) as caught:
        rule_options(rule, [pair])
    assert text in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Counted(Confidence):
    bits: Literal[4, 8] = 8


@dataclass(frozen=True, kw_only=True)
class Hidden(Confidence):
    second: nn.Module | None = None


def test_choices_need_not_be_words():
    assert rule_options(Counted, ["bits=4"]) == {"bits": 4}
    with pytest.raises(BadParameter, match="bits: Input should be 4 or 8, got '5'"):
        rule_options(Counted, ["bits=5"])


def test_types_are_read_only_where_something_is_set():
    assert rule_options(Hidden, []) == {}
