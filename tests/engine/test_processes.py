"""Processes that work together, and how they part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cpr_wrap.engine import ranks
from tests.processes import run_ranks


def test_alone():
    assert not ranks.together()
    assert (ranks.rank(), ranks.world_size()) == (0, 1)
    ranks.join(torch.device("cpu"))
    ranks.barrier()
    ranks.leave()
    assert not ranks.together()


THREADS = """
import os
import torch
import torch.distributed as dist
from cpr_wrap.engine import ranks

dist.init_process_group("gloo")
weight = torch.ones(3, requires_grad=True)
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()  # imports much of torch, with the group in place
assert ranks.gather({ranks.rank(): 5}) == {0: 5}
ranks.leave()
assert not ranks.together()
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert not [name for name in names if "gloo" in name], names
"""


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the threads from /proc")
def test_after_leaving_no_thread_is_left_that_could_abort_the_exit():
    (done,) = run_ranks(1, "-c", THREADS)
    assert done.returncode == 0, done.stderr


SILENT = """
import time
from datetime import timedelta
import torch
from cpr_wrap.engine import ranks

ranks._PATIENCE = timedelta(seconds=1)
ranks.join(torch.device("cpu"))
ranks.least(3)
if ranks.rank() == 1:
    time.sleep(4)  # frozen, as far as the other can tell
else:
    ranks.least(3)
"""


@pytest.mark.integration
def test_without_torchrun_a_silent_process_is_waited_for_so_long_and_the_error_says_so():
    first, _ = run_ranks(2, "-c", SILENT)
    assert first.returncode == 1
    assert "rank 0 of 2 got no answer from the other processes (" in first.stderr
    assert "Timed out waiting 1000ms" in first.stderr
    assert "a process waits 0:00:01 at most" in first.stderr
    assert "run the same command again" in first.stderr
