"""How far an evaluation is: what is counted, what is guessed, and what fits on a line."""

from __future__ import annotations

import io
import re
import sys
import time
from collections import Counter

import pytest
import torch

from cpr_wrap.attacks.adaptive import Attack, Halving, as_stage
from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.engine.block import Block
from cpr_wrap.engine.progress import Progress, _short, busy, guess
from cpr_wrap.meter import Passes, tally
from cpr_wrap.objective import Goal, confident_mistake
from cpr_wrap.rules import AcceptAll, Consistency
from cpr_wrap.selective import SelectiveClassifier

from ..toys import Line


def _block(count=4):
    x = torch.linspace(0.1, 0.9, count, dtype=torch.float64)[:, None]
    model = SelectiveClassifier(Line(), AcceptAll())
    y = torch.zeros(count, dtype=torch.int64)
    block = Block(model, x, y, torch.arange(count), eps=0.1, norm="Linf", batch_size=8)
    block.judge_clean()
    return block


def _spend(passes):
    tally(torch.zeros(passes, 1))


def test_a_stage_weighs_what_it_cost_on_finished_blocks():
    block = _block()
    with Progress(None, 8, [1.0, 100.0]) as reporter:
        for passes in (4, 36):
            _spend(passes)
            reporter.listen(block, "stage", Passes(forwards=passes))
        status = reporter.status()
    # The second block of four will cost what the first did, whatever was guessed.
    assert (status.passes, status.passes_expected) == (40, 80)
    assert (status.fraction, status.images_done) == (0.5, 4)


def test_what_is_not_known_yet_is_guessed_and_scaled_by_what_is():
    block = _block()
    with Progress(None, 4, [1.0, 10.0]) as reporter:
        assert reporter.status().passes_expected == 44
        reporter.listen(block, "clean", Passes(forwards=8))
        assert reporter.status().passes_expected == 8 + 80


def test_passes_of_a_stage_under_way_count_at_once():
    with Progress(None, 4, [10.0]) as reporter:
        _spend(30)
        assert reporter.status().fraction == 0.75
        _spend(30)  # more than was guessed
        assert reporter.status().fraction == 1.0


def test_a_block_may_come_while_the_bar_is_drawn():
    reporter = Progress(None, 12, [10.0])

    class Slow(Counter):
        """Another block begins while this one is counted."""

        def __radd__(self, other):
            reporter.blocks[len(reporter.blocks)] = Counter(images=4)
            return other + Counter(self)

    reporter.blocks = {0: Slow(images=4), 1: Counter(images=4)}
    assert reporter.known()["images"] == 8


def test_replayed_work_does_not_count_as_speed():
    block = _block()
    with Progress(None, 8, [10.0]) as reporter:
        reporter.started = time.perf_counter() - 100
        reporter.listen(block, "stage", Passes(forwards=40))
        _spend(10)
        left = reporter.status().seconds_left
    assert left == pytest.approx(300, rel=0.1)  # 10 passes in 100 seconds, 30 are left


def test_guesses_follow_settings():
    attack = Attack(objective=confident_mistake, goal=Goal.ACCEPTED_MISTAKE, steps=7, step=0.1)
    rule = Consistency(steps=3)
    halving = Halving(goal=Goal.REJECTED, rounds=2)
    clean, seven, twice, halved, guest = guess(
        (attack, Attack(**{**vars(attack), "starts": (0, 1)}), halving, as_stage(lambda *_: None)),
        rule,
    )
    assert clean == rule.cost.total
    assert twice == 2 * seven
    assert halved == 2 * rule.cost.total
    assert guest > 0
    for budget in BUDGETS.values():
        assert min(guess(budget.stages(rule, 0.1), rule)) > 0


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12k"), (1.2e6, "1.2M"), (3.4e12, "3T")],
)
def test_numbers_are_short(number, text):
    assert _short(number) == text


def test_the_bar_fits_80_columns_with_its_time(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setenv("COLUMNS", "80")
    bar = Progress(True, 10_000, [900_000.0])
    bar.started = time.perf_counter() - 1000
    bar.attack = "an attack with a very long name indeed"
    bar.spent, bar.seen = [1_111 * 10**6], [9999]
    bar.blocks = {0: Counter(images=9999, at_0=1234, at_1=5678)}
    with bar:
        bar.meter.forwards = 10**9
    assert sys.stderr.getvalue().endswith("\n")  # what is printed next has a line of its own
    (line,) = [line for line in sys.stderr.getvalue().splitlines() if "left" in line]
    text = r" 90% 0:0\d:\d\d left 1.0G/1.1G passes 9999/10000 images 1234-5678 errors "
    assert re.search(text, line)
    assert len(line) <= 80
    assert sys.stderr.getvalue().endswith("\n")  # what is printed next has a line of its own


def test_busy_says_nothing_about_what_is_quick(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with busy("thinking"):
        _spend(3)
    assert sys.stderr.getvalue() == ""
    with busy("thinking", after=0.01):
        _spend(3)
        time.sleep(0.3)
    assert "thinking: 0 s, 3 passes" in sys.stderr.getvalue()


def test_busy_is_silent_where_nobody_watches(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with busy("thinking", after=0.01):
        time.sleep(0.1)
    assert sys.stderr.getvalue() == ""
