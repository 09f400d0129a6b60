"""The examples for AutoAttack and Foolbox run, and show what they say."""

from __future__ import annotations

import re
import sys

import autoattack_both_ways
import foolbox_both_ways
import pytest


def run(example, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["example", *arguments])
    example.main()
    return capsys.readouterr().out


@pytest.mark.integration
def test_the_adaptive_way_gets_more_mistakes_through(monkeypatch, capsys):
    out = run(autoattack_both_ways, monkeypatch, capsys, "--num", "4")
    on_base, adaptive = out.splitlines()[:2]
    assert on_base.startswith("AutoAttack-small: 4 of 4 mistakes of the network")
    assert adaptive.startswith("adaptive AutoAttack-small: ")
    through = [int(re.search(r"(\d+) accepted", line)[1]) for line in (on_base, adaptive)]
    assert through[1] > through[0]
    assert "RobustnessCurve(4 images, Linf eps=0.45)" in out


@pytest.mark.integration
def test_foolbox_counts_what_the_model_confirms(monkeypatch, capsys):
    out = run(foolbox_both_ways, monkeypatch, capsys, "--num", "2", "--steps", "6")
    counts = re.findall(r"(\d+) of 2 by Foolbox's count, (\d+) by the model's own", out)
    assert len(counts) == 2
    assert all(foolbox == own for foolbox, own in counts)
    assert "RobustnessCurve(2 images, Linf eps=0.45)" in out
