"""Memory and cost of an evaluation in its own process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cpr_wrap.rules import Confidence
from cpr_wrap.selective import SelectiveClassifier
from examples.benchmark import footprint as module
from examples.benchmark.footprint import Footprint, footprint, resident
from tests.toys import pixels


def picklable():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    x = pixels(5).float()
    model = SelectiveClassifier(network, Confidence(threshold=0.4))
    return model, x, model.logits(x).argmax(dim=1)


@pytest.mark.integration
def test_an_evaluation_in_a_fresh_process():
    found = footprint(*picklable(), 0.1, times=2, batch_size=16)
    assert found.images == 10
    assert found.passes > 0
    assert found.cpu_seconds > 0
    assert found.inputs == 10 * (4 * 4 + 8)
    assert found.results == 3 * 10 * 4 * 4
    assert 0 < found.before <= found.peak


@pytest.mark.integration
def test_the_process_does_what_it_is_told(tmp_path, capsys):
    model, x, y = picklable()
    settings = {"eps": 0.1, "budget": "quick", "batch_size": 16}
    answers = []
    for times in (1, 2):
        torch.save((model, x, y, times, 1, settings), tmp_path / "job.pt")
        module._main(str(tmp_path / "job.pt"))
        answers.append(Footprint(**json.loads(capsys.readouterr().out)))
    assert [answer.images for answer in answers] == [5, 10]
    # No random starts in this budget: copies cost what the images cost.
    assert answers[1].passes == pytest.approx(2 * answers[0].passes, rel=0.1)


def test_working_memory_is_what_is_left():
    found = Footprint(
        images=1, passes=1, seconds=1, cpu_seconds=1, inputs=5, results=7, before=100, peak=142
    )
    assert found.working == 30


def test_a_failure_in_the_process_is_told(monkeypatch):
    failed = SimpleNamespace(returncode=1, stderr="ValueError: x: expected pixels\n", stdout="")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(RuntimeError, match="the measuring process failed: ValueError: x: expected"):
        footprint(*picklable(), 0.1)


def test_resident_memory_grows_with_what_is_held():
    before, _ = resident()
    block = torch.ones(2**24)  # 64 MB
    now, most = resident()
    assert now - before > 0.9 * block.numel() * 4
    assert most > now - 2**20
    del block
    assert resident()[1] > most - 2**20  # a peak stays; the kernel's counters are a little late


def test_without_proc_the_peak_is_asked_of_the_system(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda self: False)
    now, most = resident()
    assert now == most > 2**20
