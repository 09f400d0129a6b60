"""What people and machines read."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from cpr_wrap.cli import _show
from cpr_wrap.cli._run import print_json
from cpr_wrap.rules import AcceptAll, Confidence, Consistency


class Color(str, enum.Enum):
    red = "red"


@dataclass(frozen=True)
class Pair:
    first: object
    second: object = None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Color.red, "red"),
        (float("nan"), None),
        (float("inf"), None),
        (Path("a/b"), "a/b"),
        ((1, [2.0]), [1, [2.0]]),
        ({3: None}, {"3": None}),
        (Pair(1, Pair(2)), {"first": 1, "second": {"first": 2, "second": None}}),
    ],
)
def test_json_of_what_commands_have(value, expected, capsys):
    print_json({"a": value})
    assert json.loads(capsys.readouterr().out) == {"a": expected}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599.6, "1 h 00 min"),
        (8040, "2 h 14 min"),
    ],
)
def test_duration(seconds, text):
    assert _show.duration(seconds) == text


def test_percent():
    assert _show.percent(0.1234) == "12.3%"
    assert _show.percent(None) == _show.percent(float("nan")) == "–"


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (AcceptAll(), "none (accepts everything)"),
        (Confidence(threshold=0.98), "confidence (threshold 0.98)"),
        (
            Consistency(radius=0.1, steps=20, step_size=0.01),
            "cpr (Linf radius 0.1, 20 steps of 0.01)",
        ),
        (
            Consistency(radius=0.1, steps=20, step_size=0.01, keep="best"),
            "cpr (Linf radius 0.1, 20 steps of 0.01, keep best)",
        ),
    ],
)
def test_describe_rule(rule, text):
    assert rule.describe() == text


def test_a_list_is_aligned():
    lines = _show.listed("rules", {"cpr": "consistency", "none": ""})
    assert lines == ["rules:", "  cpr   consistency", "  none"]
