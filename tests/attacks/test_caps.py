"""Budgets keep their caps where no image breaks: there every stage runs in full."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cpr_wrap import (
    AcceptAll,
    Confidence,
    Consistency,
    RectifiedConfidence,
    RejectClass,
    SelectiveClassifier,
    Verified,
    noise,
    robustness_curve,
)

# Ten pixels of 16 are the logits. The own one leads by 0.4, so that the boundary is 0.2 away, and
# a mistake within 0.28 is never as sure or as deep as these rules ask.
RULES = {
    "cpr": (Consistency(radius=0.1, steps=20, step_size=0.01), None, 0.28),
    "verified": (Verified(radius=0.1), None, 0.28),
    "confidence": (Confidence(threshold=0.98), None, 0.28),
    "rcd": (RejectClass(), 12.5, 0.28),
    "atrr": (RectifiedConfidence(threshold=0.98), 8.0, 0.28),
    "none": (AcceptAll(), None, 0.18),
}
SCALE = 20.0


def network(extra: float | None) -> nn.Module:
    layer = nn.Linear(16, 10 if extra is None else 11)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layer.weight[:10] = SCALE * torch.eye(16)[:10]
        layer.bias[10:] = extra or 0.0
    return nn.Sequential(nn.Flatten(), layer).eval()


def unbroken(name: str, budget: str):
    rule, extra, eps = RULES[name]
    y = torch.arange(32) % 10
    x = torch.full((32, 16), 0.3)
    x[torch.arange(32), y] = 0.7
    x = (x + 0.02 * torch.rand(x.shape)).view(32, 1, 4, 4)
    numbers = torch.arange(1000, 1032)
    assert noise.sampled(numbers, 1 / 16).sum() == 5  # more than the two to be expected
    model = SelectiveClassifier(network(extra), rule)
    curve = robustness_curve(model, x, y, eps, budget=budget, indices=numbers, batch_size=128)
    assert torch.equal(curve.records.clean_label, y)
    assert not curve.records.outer_broken.any()
    return curve


@pytest.mark.parametrize("name", RULES)
def test_quick_takes_at_most_1000_passes_per_image(name):
    assert 300 < unbroken(name, "quick").passes_per_image <= 1_000


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_standard_takes_at_most_10000_passes_per_image(name):
    curve = unbroken(name, "standard")
    assert 3_000 < curve.passes_per_image <= 10_000
    assert curve.effort.images == 5
