"""How many rows fit into a batch, and that answers do not hang on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpr_wrap import load, load_data
from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.engine.precision import auto_batch_size, free_bytes, graph_bytes, is_out_of_memory
from cpr_wrap.evaluation import robustness_curve
from tests.evaluation.test_curve import make


def test_batch_size_follows_free_memory(monkeypatch):
    model, x, _ = make("confidence")
    one = x[:1]
    assert auto_batch_size(model, one) == 256
    room = 2 * graph_bytes(model, one) * 20 / 0.4
    monkeypatch.setattr("cpr_wrap.engine.precision.free_bytes", lambda _: room)
    assert auto_batch_size(model, one) == 16
    monkeypatch.setattr("cpr_wrap.engine.precision.free_bytes", lambda _: 1)
    assert auto_batch_size(model, one) == 1


def test_free_memory_is_known_or_guessed(monkeypatch):
    assert free_bytes(torch.device("cpu")) > 0

    def unknown(_):
        raise ValueError

    monkeypatch.setattr("os.sysconf", unknown)
    assert free_bytes(torch.device("cpu")) == 2 * 2**30


def test_every_device_has_its_own_words_for_being_full():
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**50, dtype=torch.uint8)  # of the CPU's memory
    assert is_out_of_memory(real.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_processes_on_one_cpu_share_its_memory(monkeypatch):
    model, x, _ = make("confidence")
    room = 2 * graph_bytes(model, x[:1]) * 40 / 0.4
    monkeypatch.setattr("cpr_wrap.engine.precision.free_bytes", lambda _: room)
    assert auto_batch_size(model, x[:1]) == 32
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert auto_batch_size(model, x[:1]) == 8


def test_memory_that_torch_keeps_for_later_is_free(monkeypatch):
    numbers = {"mem_get_info": (100, 1000), "memory_reserved": 700, "memory_allocated": 300}
    for name, number in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, number=number: number)
    assert free_bytes(torch.device("cuda", 0)) == 100 + 400


class Brief:
    """`quick` with a fifth of its steps."""

    name = "brief"

    def stages(self, rule, eps):
        return tuple(
            replace(stage, steps=max(2, stage.steps // 5), rounds=min(stage.rounds, 2))
            if isinstance(stage, Attack)
            else stage
            for stage in BUDGETS["quick"].stages(rule, eps)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget", [pytest.param(Brief(), id="brief"), pytest.param("quick", marks=pytest.mark.slow)]
)
def test_another_batch_size_moves_at_most_one_image(budget):
    model = load("bundled:mnist-compact-at", rule="cpr", radius=0.1, steps=3, step_size=0.05)
    data = load_data("mnist", "robust", num=60)
    one, two = (
        robustness_curve(model, data.images, data.labels, 0.4, budget=budget, batch_size=size)
        for size in (128, 48)
    )
    assert one.error_at(1.0) > 0.2  # there is something to move
    same = (one.records.outer_broken == two.records.outer_broken) & torch.isclose(
        one.records.rejected_radius, two.records.rejected_radius, rtol=0, atol=1e-5
    )
    assert int((~same).sum()) <= 1
