"""The yardstick finds what is there, does all its work, and leaves the model alone."""

from __future__ import annotations

import pytest
import torch

from cpr_wrap.meter import count_passes
from cpr_wrap.rules import CPRWrapper
from cpr_wrap.selective import SelectiveClassifier
from examples.benchmark.naive import NaiveLoop
from tests.evaluation.test_curve import make
from tests.toys import Line


def test_errors_on_a_line():
    # The boundary is at 0.5, and CPR rejects within 0.1 of it.
    model = CPRWrapper(Line(), radius=0.1, steps=5, step_size=0.03)
    x = torch.tensor([[0.1], [0.32], [0.45], [0.55], [0.8], [0.37]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 1, 0, 0])
    # Never; rejected at a radius of 0.08; rejected as it is, twice; accepted and wrong as it is;
    # rejected at 0.03. None of the others can get 0.1 beyond the boundary.
    found = NaiveLoop(steps=15).errors(model, x, y, 0.12, alphas=(0.0, 0.3, 0.5, 1.0))
    assert found.broken.tolist() == [False, False, False, False, True, False]
    assert found.at_alphas.int().T.tolist() == [
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [1, 1, 1, 1],
        [1, 1, 1, 1],
        [1, 1, 1, 1],
        [0, 1, 1, 1],
    ]


def test_an_accepted_mistake_is_found():
    model = CPRWrapper(Line(), radius=0.1, steps=5, step_size=0.03)
    x, y = torch.tensor([[0.4]], dtype=torch.float64), torch.tensor([0])
    loop = NaiveLoop(steps=10, random_starts=1)
    assert not loop.errors(model, x, y, 0.19, alphas=(1.0,)).broken.any()
    assert loop.errors(model, x, y, 0.25, alphas=(1.0,)).broken.all()


def test_every_alpha_target_and_start_costs_its_passes():
    model, x, y = make("cpr", count=2)
    k, m, n, starts, alphas = 4, model.rule.steps, 3, 3, 2
    with count_passes() as passes:
        loop = NaiveLoop(steps=n, random_starts=starts - 1)
        loop.errors(model, x, y, 0.1, alphas=(0.0, 0.5, 1.0))
    plain = {"HCMOA": k - 1, "LCIA": alphas}
    through_t = {"CHCMOA": k - 1, "CLCIA": alphas, "PDIA": k * alphas}
    climbs = starts * sum((plain | through_t).values())
    searches = 2 + 3 * alphas  # each asks once for the number of classes
    points_t = starts * sum(through_t.values()) * n
    points_plain = starts * sum(plain.values()) * n
    judged = climbs + 1
    assert passes.forwards == 2 * (points_plain + points_t * (m + 3) + judged * (m + 3) + searches)
    assert passes.backwards == 2 * (points_plain + points_t * (m + 2) + judged * m)


def test_the_model_is_left_alone():
    model, x, y = make("cpr", count=2)
    before = (x.clone(), torch.get_rng_state())
    NaiveLoop(steps=2).errors(model, x, y, 0.1, alphas=(1.0,))
    assert all(p.requires_grad and p.grad is None for p in model.base.parameters())
    assert torch.equal(x, before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("change", ["confidence", "L2"])
def test_other_rules_are_refused(change):
    model, x, y = make("cpr", count=2)
    if change == "confidence":
        model, x, y = make("confidence", count=2)
    else:
        from dataclasses import replace

        model = SelectiveClassifier(model.base, replace(model.rule, norm="L2"))
    with pytest.raises(ValueError, match="rule: expected CPR with norm Linf, got"):
        NaiveLoop().errors(model, x, y, 0.1)
