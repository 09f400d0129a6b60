"""Cheaper arithmetic searches; the model itself judges."""

from __future__ import annotations

import pytest
import torch

from cpr_wrap.attacks.adaptive import Attack
from cpr_wrap.engine.block import Block, rank_targets
from cpr_wrap.engine.precision import Precision
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.evaluation import robustness_curve, verify_curve
from cpr_wrap.objective import Goal, lost_margin
from cpr_wrap.rules import AcceptAll, CPRWrapper
from cpr_wrap.rules.cpr import consistent_mistake
from cpr_wrap.selective import SelectiveClassifier
from tests.engine.test_stages import outer
from tests.evaluation.test_curve import make


def small_cnn():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 4)
    ).eval()


def test_cheaper_searches_leave_the_model_alone_and_the_verdict_to_it():
    net = small_cnn()
    model = CPRWrapper(net, radius=0.02, steps=3, step_size=0.01)
    x = torch.rand(4, 1, 8, 8)
    y = model.logits(x).argmax(dim=1)
    before = {k: (v.clone(), v.stride()) for k, v in net.state_dict().items()}
    for options in ({"dtype": "bf16"}, {"channels_last": True}):
        curve = robustness_curve(model, x, y, 0.05, budget="quick", **options)
        assert verify_curve(model, curve).holds
        name, value = next(iter(options.items()))
        assert getattr(curve.settings, name) == value
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name][0])
        assert value.stride() == before[name][1]


def test_a_compiled_copy_searches(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(self))
    model, _, _ = make("confidence")
    searcher = Precision(compile=True).model(model)
    assert searcher is not model
    assert compiled == [searcher.base]
    assert compiled[0] is not model.base
    assert Precision().model(model) is model


@pytest.mark.integration
def test_a_compiled_copy_is_made_once_and_differentiated_twice(monkeypatch):
    plain, copies = torch.nn.Module.compile, []

    def compile_without_code(self):
        copies.append(self)
        plain(self, backend="aot_eager")  # all of torch.compile but the code generation

    monkeypatch.setattr(torch.nn.Module, "compile", compile_without_code)
    model = CPRWrapper(small_cnn(), radius=0.02, steps=3, step_size=0.01)
    x = torch.rand(2, 1, 8, 8)
    y = model.logits(x).argmax(dim=1)
    curve = robustness_curve(model, x, y, 0.05, budget="quick", compile=True, block_size=1)
    assert len(copies) == 1
    assert verify_curve(model, curve).holds
    block = Block(
        *(model, x, y, y), eps=0.05, norm="Linf", batch_size=4, precision=Precision(compile=True)
    )
    rank_targets(block, 1)
    run_stage(block, outer(objective=consistent_mistake, targets=1, steps=2), seed=0)


class Coarse(torch.nn.Module):
    """Class 1 from 0.6175 on; in bf16, whose numbers near 100 are 0.5 apart, from 0.594 on."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 2)
        self.line.weight = torch.nn.Parameter(torch.tensor([[0.0], [8.0]]))
        self.line.bias = torch.nn.Parameter(torch.tensor([100.24, 95.3]))
        self.eval()

    def forward(self, x):
        return self.line(x)


def test_a_false_alarm_of_cheap_arithmetic_does_not_end_a_climb():
    model = SelectiveClassifier(Coarse(), AcceptAll())
    x, y = torch.tensor([[0.5]]), torch.tensor([0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.logits(torch.tensor([[0.6]])).argmax() == 1
    assert model.logits(torch.tensor([[0.6]])).argmax() == 0
    climb = {"goal": Goal.MISTAKE, "steps": 20, "step": 0.05, "momentum": 0.0}
    for dtype in (None, "bf16"):
        block = Block(
            *(model, x, y, y),
            eps=0.2,
            norm="Linf",
            batch_size=4,
            precision=Precision(dtype=dtype),
        )
        run_stage(block, Attack(objective=lost_margin, **climb), seed=0)
        assert block.found[Goal.MISTAKE].known.all()
        assert block.found[Goal.MISTAKE].distance >= 0.1175
