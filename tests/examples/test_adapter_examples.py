"""The examples with AutoAttack and Foolbox run, and what they print is true."""

from __future__ import annotations

import re
import sys

import autoattack_both_ways
import foolbox_both_ways


def run(module, monkeypatch, capsys) -> str:
    monkeypatch.setattr(sys, "argv", [module.__name__, "--num", "2"])
    module.main()
    return capsys.readouterr().out


def test_autoattack_both_ways(monkeypatch, capsys):
    out = run(autoattack_both_ways, monkeypatch, capsys)
    assert len(re.findall(r"\d of 2 proposals are accepted and wrong", out)) == 2
    assert "RobustnessCurve(2 images" in out


def test_foolbox_both_ways(monkeypatch, capsys):
    out = run(foolbox_both_ways, monkeypatch, capsys)
    counts = re.findall(r"(\d+) claimed, (\d+) hold", out)
    assert len(counts) == 2
    assert all(claimed == held for claimed, held in counts)
    assert "RobustnessCurve(2 images" in out
