from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cpr_wrap.selective import CONFIG, WEIGHTS
from cpr_wrap.training.distributed import choose_device, share, total
from tests.processes import run_ranks
from tests.training import torchrun_script

METHODS = ("at", "rcd")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 67])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_shares_are_disjoint_cover_the_batch_and_begin_at_even_places(count, world):
    shares = [share(torch.arange(count), rank, world) for rank in range(world)]
    rows = [own.tolist() if weight else [] for own, weight in shares]
    assert [row for part in rows for row in part] == list(range(count))
    # Whoever has no share computes on some images nevertheless, so that all exchange as often.
    assert all(len(own) == min(count, 2) for own, weight in shares if not weight)
    assert all(part[0] % 2 == 0 for part in rows if part)
    assert rows[0]  # whose batch statistics are kept
    assert all(len(part) != 1 for part in rows) or count == 1
    if count >= 2 * world:
        assert max(map(len, rows)) - min(map(len, rows)) <= 3


def test_alone():
    assert total(torch.tensor([2.0])).tolist() == [2.0]


def test_device_as_asked_or_as_there_is(monkeypatch):
    assert choose_device("meta").type == "meta"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device(None).type == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device(None).type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device(None) == torch.device("cuda", 3)


@pytest.mark.integration
def test_two_processes_give_the_weights_of_one(tmp_path):
    torchrun_script.main(str(tmp_path / "one"), *METHODS)
    words = ("-m", "tests.training.torchrun_script", str(tmp_path / "two"), *METHODS)
    for done in run_ranks(2, *words, cwd=ROOT):
        assert done.returncode == 0, done.stderr[-2000:]
    for name in METHODS:
        one = load_file(tmp_path / "one" / name / WEIGHTS)
        two = load_file(tmp_path / "two" / name / WEIGHTS)
        for key, tensor in one.items():
            assert torch.allclose(tensor, two[key], atol=1e-5), (name, key)
        histories = [
            json.loads((tmp_path / run / name / CONFIG).read_text())["history"]
            for run in ("one", "two")
        ]
        for first, second in zip(*histories, strict=True):
            for key in ("loss", "clean", "adversarial", "validation_clean", "validation_robust"):
                assert first[key] == pytest.approx(second[key], abs=1e-4), (name, key)
