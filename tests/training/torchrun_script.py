"""Started by torchrun in a test: trains with every method named, one folder each.

Usage: torchrun_script.py FOLDER METHOD...
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from cpr_wrap.training import train
from tests.training.making import plain_network, quick_recipe, stripes


def main(folder: str, *methods: str) -> None:
    """Train where shares differ in size, and where the last two images leave one process idle."""
    torch.set_num_threads(1)
    for name in methods:
        recipe = quick_recipe(name, epochs=2, batch_size=9)
        train(
            recipe,
            stripes(56),
            network=plain_network(3 + recipe.method.extra_outputs),
            validation=stripes(30, seed=1),
            early_stop=5,
            out=Path(folder) / name,
            device="cpu",
            progress=False,
        )
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
