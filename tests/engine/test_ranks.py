"""Several processes give what one gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from cpr_wrap.engine import ranks
from cpr_wrap.evaluation import load_result, robustness_curve
from cpr_wrap.evaluation.curve import _block_size
from tests.budgets import Little
from tests.evaluation.test_curve import make
from tests.processes import run_ranks

ROOT = Path(__file__).parents[2]


def script(
    out: Path, store: Path, fail_on: str = "", how: str = "raise", block_size: int = 2
) -> tuple[str, ...]:
    out.mkdir(parents=True, exist_ok=True)
    arguments = (str(out), str(store), fail_on, how, str(block_size))
    return ("-m", "tests.engine.shards_script", *arguments)


def torchrun(count: int, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.integration
def test_two_processes_give_the_same_records_as_one(tmp_path):
    for done in run_ranks(2, *script(tmp_path / "two", tmp_path / "store"), cwd=ROOT):
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "two" / "rank1").exists()
    model, x, y = make("cpr")
    alone = robustness_curve(model, x, y, 0.1, budget=Little(), block_size=2, batch_size=3)
    together = load_result(tmp_path / "two")
    assert together.records == alone.records
    assert together.provenance.ranks == 2
    assert together.settings.batch_size == 3  # rank 0 has room for four
    manifests = list((tmp_path / "store").rglob("manifest.json"))
    assert [json.loads(file.read_text())["batch_size"] for file in manifests] == [3]
    assert together.passes_per_image == alone.passes_per_image


@pytest.mark.integration
def test_a_rank_that_dies_says_so_and_any_number_of_ranks_resumes(tmp_path):
    words = script(tmp_path / "dead", tmp_path / "store", fail_on="1")
    other, dead = run_ranks(2, *words, cwd=ROOT)
    assert dead.returncode != 0
    assert "rank 1 of 2 failed on block" in dead.stderr
    assert "run the same command again" in dead.stderr
    assert other.returncode != 0
    assert "rank 0 of 2 got no answer from the other processes" in other.stderr
    assert not (tmp_path / "dead" / "result.json").exists()
    kept = len(list((tmp_path / "store").rglob("*.unit")))
    assert kept > 0
    model, x, y = make("cpr")
    settings = {"eps": 0.1, "budget": Little(), "block_size": 2}
    resumed = robustness_curve(model, x, y, store=tmp_path / "store", **settings)
    fresh = robustness_curve(model, x, y, batch_size=3, **settings)  # as the ranks had
    assert resumed.records == fresh.records


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_and_more_ranks_than_blocks_finish_it(tmp_path):
    store = tmp_path / "store"
    done = torchrun(2, *script(tmp_path / "dead", store, fail_on="1", how="kill", block_size=4))
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr
    assert not (tmp_path / "dead" / "result.json").exists()
    assert list(store.rglob("*.unit"))
    done = torchrun(3, *script(tmp_path / "three", store, block_size=4))
    assert done.returncode == 0, done.stderr
    model, x, y = make("cpr")
    alone = robustness_curve(model, x, y, 0.1, budget=Little(), block_size=4, batch_size=3)
    assert load_result(tmp_path / "three").records == alone.records


def test_alone_there_is_one_rank_and_errors_stay_as_they_are():
    assert (ranks.rank(), ranks.world_size()) == (0, 1)
    assert ranks.gather({3: "c"}) == {3: "c"}
    assert ranks.least(7) == 7
    with pytest.raises(ZeroDivisionError), ranks.explain_failure(0):
        raise ZeroDivisionError


def test_no_rank_waits_while_another_has_more_than_one_piece_left(monkeypatch):
    monkeypatch.setattr(ranks, "together", lambda: True)
    counter = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: counter)
    shares, taken = [], []
    for _ in range(3):
        monkeypatch.setattr(ranks, "_round", 0)  # each stands for a process of its own
        share = ranks.turns(10)
        taken.append([next(share)])
        shares.append(share)
    # The first is slow: while it does its piece, the others do all the rest.
    for rank in (1, 2, 2, 1, 2, 1, 2):
        taken[rank].append(next(shares[rank]))
    assert taken == [[0], [1, 3, 6, 8], [2, 4, 5, 7, 9]]
    assert [next(share, None) for share in shares] == [None] * 3


@pytest.mark.parametrize(
    ("images", "size"),
    [(1, 1), (100, 100), (101, 51), (200, 100), (350, 88), (1000, 125), (9999, 127)],
)
def test_blocks_are_equal_and_an_eighth_of_the_images_within_limits(images, size):
    assert _block_size(images) == size
