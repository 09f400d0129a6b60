from __future__ import annotations

import math

import pytest
import torch

from cpr_wrap._text import count_text, duration, eps_text, percent, percent_range


@pytest.mark.parametrize(
    ("eps", "text"),
    [
        (8 / 255, "8/255"),
        (16 / 255, "16/255"),
        (float(torch.tensor(8 / 255)), "8/255"),  # through float32
        (0.3, "0.3"),
        (0.4, "0.4"),  # 102/255 as well, but nobody writes it so
        (0.0055, "0.0055"),
        (1 / 3, "85/255"),
        (1 / 7, "0.1429"),
        (3.0, "3"),
    ],
)
def test_a_budget_reads_as_people_write_it(eps, text):
    assert eps_text(eps) == text


def test_shares_in_percent_and_a_dash_for_none():
    assert percent(0.1234) == "12.3%"
    assert percent(0.1234, 2) == "12.34%"
    assert percent(None) == percent(math.nan) == "–"
    assert percent_range(0.5, 1) == "50.0–100.0%"


def test_counts_and_durations():
    assert count_text(1234567.4) == "1,234,567"
    assert count_text(None) == "–"
    texts = ["0.5 s", "12 s", "1 min 30 s", "4 min 05 s", "2 h 00 min", "2 h 01 min"]
    assert [duration(s) for s in (0.5, 12, 90, 245, 7200, 7300)] == texts
