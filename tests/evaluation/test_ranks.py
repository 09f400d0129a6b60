"""Several processes give what one gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cpr_wrap.evaluation import load_result, ranks, robustness_curve
from tests.evaluation.test_curve import make

ROOT = Path(__file__).parents[2]


def torchrun(
    processes: int,
    out: Path,
    store: Path,
    fail_on: str = "",
    how: str = "raise",
    block_size: int = 2,
) -> subprocess.CompletedProcess:
    out.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(processes), "-m", "tests.evaluation.shards_script"),
        *(str(out), str(store), fail_on, how, str(block_size)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


def test_two_processes_give_the_same_records_as_one(tmp_path):
    done = torchrun(2, tmp_path / "two", tmp_path / "store")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "two" / "rank1").exists()
    model, x, y = make("cpr")
    alone = robustness_curve(model, x, y, 0.1, budget="quick", block_size=2, batch_size=3)
    together = load_result(tmp_path / "two")
    assert together.records == alone.records
    assert together.details["ranks"] == 2
    assert together.details["settings"]["batch_size"] == 3  # rank 0 has room for four
    manifests = list((tmp_path / "store").rglob("manifest.json"))
    assert [json.loads(file.read_text())["batch_size"] for file in manifests] == [3]
    assert together.details["passes_total"] == alone.details["passes_total"]


def test_a_rank_that_dies_says_so_and_any_number_of_ranks_resumes(tmp_path):
    done = torchrun(2, tmp_path / "dead", tmp_path / "store", fail_on="1")
    assert done.returncode != 0
    assert "rank 1 of 2 failed on block" in done.stderr
    assert "run the same command again" in done.stderr
    assert not (tmp_path / "dead" / "result.json").exists()
    kept = len(list((tmp_path / "store").rglob("*.safetensors")))
    assert kept > 0
    model, x, y = make("cpr")
    settings = {"eps": 0.1, "budget": "quick", "block_size": 2}
    resumed = robustness_curve(model, x, y, store=tmp_path / "store", **settings)
    assert resumed.records == robustness_curve(model, x, y, **settings).records


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_and_more_ranks_than_blocks_finish_it(tmp_path):
    store = tmp_path / "store"
    done = torchrun(2, tmp_path / "dead", store, fail_on="1", how="kill", block_size=4)
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr
    assert not (tmp_path / "dead" / "result.json").exists()
    assert list(store.rglob("*.safetensors"))
    done = torchrun(3, tmp_path / "three", store, block_size=4)
    assert done.returncode == 0, done.stderr
    model, x, y = make("cpr")
    alone = robustness_curve(model, x, y, 0.1, budget="quick", block_size=4, batch_size=3)
    assert load_result(tmp_path / "three").records == alone.records


def test_alone_there_is_one_rank_and_errors_stay_as_they_are():
    assert (ranks.rank(), ranks.world_size()) == (0, 1)
    assert ranks.gather({3: "c"}) == {3: "c"}
    assert ranks.least(7) == 7
    with pytest.raises(ZeroDivisionError), ranks.explain_failure(0):
        raise ZeroDivisionError
