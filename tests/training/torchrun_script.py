"""Started by torchrun in a test: trains with every method named, one folder each.

Usage: torchrun_script.py FOLDER METHOD...

It does not destroy the process group: that is left to the library.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from cpr_wrap.engine import ranks
from cpr_wrap.training import train
from cpr_wrap.training.distributed import follow_leader, sum_gradients
from tests.training.making import plain_network, quick_recipe, stripes


def main(folder: str, *methods: str) -> None:
    """Train where shares differ in size, and where the last two images leave one process idle."""
    torch.set_num_threads(1)
    for name in methods:
        recipe = quick_recipe(name, epochs=1, batch_size=9)
        train(
            recipe,
            stripes(29),
            network=plain_network(3 + recipe.method.extra_outputs),
            validation=stripes(30, seed=1),
            early_stop=5,
            out=Path(folder) / name,
            device="cpu",
            progress=False,
        )


def check_exchange() -> None:
    """Gradients are summed and buffers follow the leader, whatever their types."""
    ranks.join(torch.device("cpu"))
    assert ranks.world_size() == 2
    network = nn.ModuleList([nn.Linear(2, 1), nn.Linear(1, 1).double(), nn.BatchNorm2d(1)])
    shared, lonely, unused = network[0].weight, network[1].weight, network[2].weight
    network[0].bias.requires_grad_(False)
    shared.grad = torch.tensor([[1.0, 10.0]]) * (ranks.rank() + 1)
    if ranks.rank() == 1:
        lonely.grad = torch.full((1, 1), 0.5, dtype=torch.float64)
    sum_gradients(network)
    assert shared.grad.tolist() == [[3, 30]]
    assert lonely.grad.tolist() == [[0.5]]
    assert unused.grad is None  # so that no weight decay pulls at it
    assert network[0].bias.grad is None
    for buffer in network.buffers():
        buffer.fill_(ranks.rank() + 5)
    follow_leader(network.buffers())
    assert {float(buffer) for buffer in network.buffers()} == {5}


if __name__ == "__main__":
    check_exchange()
    main(*sys.argv[1:])
