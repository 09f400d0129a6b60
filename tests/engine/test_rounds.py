"""When rounds of restarts end, with attacks that break one known image each."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from cpr_wrap.attacks.adaptive import as_stage
from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.rules import AcceptAll, Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier
from tests.toys import Line

X = torch.tensor([0.55, 0.6, 0.65, 0.7], dtype=torch.float64).view(4, 1, 1, 1)
Y = torch.ones(4, dtype=torch.int64)


@dataclass(frozen=True)
class Breaks:
    """Moves one image, known by its pixel, across the boundary."""

    pixel: float | None

    @property
    def name(self) -> str:
        return f"breaks {self.pixel}"

    def __call__(self, model, x, y, eps):
        hit = torch.zeros_like(x) if self.pixel is None else (x - self.pixel).abs() < 1e-6
        return torch.where(hit.bool(), x - 0.25, x)


@dataclass(frozen=True)
class Plan:
    """Breaks nothing, then in each round what is listed for it."""

    rounds: tuple[float | None, ...]
    patience: int = 1
    cap: float = 1e9
    name: str = "plan"
    asked: list[int] = field(default_factory=list, compare=False, repr=False)

    def stages(self, rule, eps):
        return (as_stage(Breaks(None)),)

    def more(self, rule, eps, number):
        self.asked.append(number)
        return (as_stage(Breaks(self.rounds[number - 1])),) if number <= len(self.rounds) else ()


def run(plan, **more):
    model = SelectiveClassifier(Line(), AcceptAll())
    curve = robustness_curve(model, X, Y, 0.3, budget=plan, **more)
    (note,) = (n for n in curve.provenance.notes if n.startswith("plan: "))
    return curve.records.outer_broken.tolist(), note.removeprefix("plan: ")


def test_one_empty_round_ends_an_impatient_search():
    broken, why = run(Plan((0.55, None, 0.6)))
    assert broken == [True, False, False, False]
    assert why == "2 rounds, the last 1 of which found nothing more"


def test_patience_counts_empty_rounds_in_a_row():
    broken, why = run(Plan((None, None, 0.55, None, None, 0.6, None, None, None, 0.65), patience=3))
    assert broken == [True, True, False, False]
    assert why == "9 rounds, the last 3 of which found nothing more"


def test_rounds_end_when_there_are_no_more():
    broken, why = run(Plan((0.55, 0.6)))
    assert broken == [True, True, False, False]
    assert why == "2 rounds, the most there are"


def test_rounds_end_when_every_image_is_broken():
    plan = Plan((0.55, 0.6, 0.65, 0.7, None))
    assert run(plan) == ([True] * 4, "4 rounds, no image was left")
    assert plan.asked == [1, 2, 3, 4]


def test_no_round_starts_after_the_cap():
    plan = Plan((0.55, 0.6), cap=1.0)
    broken, why = run(plan)
    assert broken == [False] * 4
    assert why == "0 rounds, stopped at the cap of 1 passes"
    assert not plan.asked


@pytest.mark.parametrize("size", [1, 3])
def test_blocks_do_not_change_when_rounds_end(size):
    plan = Plan((0.7, None, 0.55, None, None), patience=2)
    assert run(plan, block_size=size) == run(plan)


def test_rounds_are_resumed_from_a_store(tmp_path):
    plan = Plan((0.55, None, 0.6, None, None), patience=2)
    first = run(plan, store=tmp_path)
    assert run(plan, store=tmp_path) == first == run(plan)


@pytest.mark.parametrize("rule", [Confidence(threshold=0.5), Consistency(radius=0.1)])
def test_no_two_rounds_of_thorough_are_the_same(rule):
    budget = BUDGETS["thorough"]
    stages = [s for number in range(1, budget.most + 1) for s in budget.more(rule, 0.3, number)]
    known = [repr(s) for s in budget.stages(rule, 0.3)]
    searches = {repr(s).replace(s.tag, "") for s in stages if "-again" not in s.tag}
    assert len(searches) == sum("-again" not in s.tag for s in stages)
    assert not {repr(s) for s in stages} & set(known)
    assert not budget.more(rule, 0.3, budget.most + 1)
    wide = [s.starts.wide for s in stages if "-donors" in s.tag]
    assert wide
    assert all(wide)


def test_progress_of_rounds_counts_every_error_once():
    told = []
    run(Plan((0.55, None, 0.6), patience=2), block_size=1, progress=told.append)
    rounds = told[-12:]  # three rounds of four blocks
    assert [round(4 * status.error_at_0) for status in rounds] == [1] * 9 + [2] * 3
    assert told[-1].fraction == 1
    assert told[-1].passes > told[-13].passes
