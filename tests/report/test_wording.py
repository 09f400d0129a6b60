from __future__ import annotations

import math

import pytest
import torch

from cpr_wrap.metrics import RampLoss, StepLoss, TableLoss
from cpr_wrap.report.wording import (
    count_text,
    eps_text,
    loss_range,
    loss_text,
    percent,
    percent_range,
    seconds_text,
    short_loss_text,
)


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
    assert loss_range(0, 0.25) == "0.000–0.250"


def test_counts_and_durations():
    assert count_text(1234567.4) == "1,234,567"
    assert [seconds_text(s) for s in (0.5, 12, 90, 7200)] == ["0.50 s", "12 s", "1.5 min", "2.0 h"]


def test_losses_in_the_papers_symbols():
    assert loss_text(StepLoss(0.05)) == "step α₀ = 0.05"
    assert short_loss_text(StepLoss(0.05)) == "α₀ = 0.05"
    assert short_loss_text(RampLoss(2)) == "t = 2"
    assert loss_text(TableLoss(((0.0, 1.0),))) == "table:0=1"
