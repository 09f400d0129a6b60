"""Run under torchrun: evaluate on all ranks, and let rank 0 write down what came out."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from cpr_wrap.evaluation import curve as curve_module
from cpr_wrap.evaluation import robustness_curve, save_result
from tests.budgets import Little
from tests.evaluation.test_curve import make


def main(out: str, store: str, fail_on: str, how: str, block_size: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # Each rank finds another amount of memory free.
    curve_module.auto_batch_size = lambda *_: 4 - dist.get_rank()
    model, x, y = make("cpr")
    if fail_on == os.environ["RANK"]:
        done = curve_module.evaluate_block

        def fail(module, args):
            if len(calls) > 30:  # beyond the clean images
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("this network has had enough")
            calls.append(1)

        def evaluate_block(*args, **options):
            model.base.register_forward_pre_hook(fail)
            return done(*args, **options)

        calls = []
        curve_module.evaluate_block = evaluate_block
    heard = []
    curve = robustness_curve(
        *(model, x, y, 0.1),
        budget=Little(),
        block_size=int(block_size),
        store=store,
        progress=heard.append,
    )
    if dist.get_rank() == 0:
        save_result(curve, out)
        assert heard
    else:
        assert not heard  # one progress bar
    Path(out, f"rank{dist.get_rank()}").touch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
