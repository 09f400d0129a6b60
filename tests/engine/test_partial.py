"""Units under way: stopped anywhere and gone on with, they end as if nothing had happened."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from cpr_wrap.attacks.adaptive import KNOWN, Attack, Halving
from cpr_wrap.attacks.donors import NearMisses
from cpr_wrap.engine import store as storing
from cpr_wrap.engine.block import Block
from cpr_wrap.engine.evaluate import Work, evaluate_block
from cpr_wrap.engine.images import Images
from cpr_wrap.engine.precision import Precision
from cpr_wrap.engine.search import Search
from cpr_wrap.engine.store import Store, Underway
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.meter import Passes
from cpr_wrap.objective import Goal, confident_mistake, lost_margin, low_confidence
from cpr_wrap.rules.cpr import consistent_mistake, disagreement
from tests.evaluation.test_curve import make
from tests.processes import ROOT, start

OUTER = {"cpr": consistent_mistake, "confidence": confident_mistake}
INNER = {"cpr": disagreement, "confidence": low_confidence}


@dataclass(frozen=True)
class Nudge:
    """An attack from elsewhere."""

    name = "nudge"

    def perturb(self, model, x, y, eps, *, norm, seed, index):
        z = x.clone().requires_grad_()
        with torch.enable_grad():
            own = model.logits(z).gather(1, y[:, None]).sum()
        return x - eps * torch.autograd.grad(own, z)[0].sign()


def stages_of(kind, rule):
    outer = {"objective": OUTER[rule], "goal": Goal.ACCEPTED_MISTAKE, "steps": 4, "step": 0.5}
    weak = {**outer, "steps": 2, "step": 0.001}  # it misses, and remembers where
    inner = {"objective": INNER[rule], "goal": Goal.REJECTED, "steps": 3, "step": 0.4}
    boundary = Attack(objective=lost_margin, goal=Goal.MISTAKE, steps=3, step=0.5, rounds=2)
    return {
        "alphas": (Attack(**inner, alphas=(0.4, 1.0), starts=(0, 1), targets=2),),
        "rounds": (boundary, Attack(**inner, rounds=3, starts=(1, KNOWN), targets=1)),
        "loss": (
            Attack(**outer, momentum=0.0, select="loss", stand_in=False, starts=(0, 1), targets=2),
        ),
        "backtracking": (Attack(**outer, momentum=0.2, backtrack=1.5, starts=(1, 2), targets=1),),
        "proposer": (Nudge(),),
        "halving": (
            boundary,
            Halving(goal=Goal.MISTAKE, rounds=3),
            Halving(goal=Goal.REJECTED, rounds=4),
        ),
        "near": (
            Attack(**weak, remember=True, starts=(1, 2), targets=2),
            Attack(**weak, starts=NearMisses(keep=2, within=100.0)),
        ),
    }[kind]


KINDS = ("alphas", "rounds", "loss", "backtracking", "proposer", "halving", "near")


def evaluate(rule, stages, store=None, hook=None):
    model, x, y = make(rule, count=9 if stages == (Nudge(),) else 5)  # three batches or more
    if hook is not None:
        model.base.register_forward_pre_hook(hook)
    work = Work(
        model=model,
        stages=stages,
        eps=0.3,
        norm="Linf",
        seed=0,
        batch_size=4,
        precision=Precision(),
    )
    return evaluate_block(work, Images(x=x, y=y, index=torch.arange(len(x))), store)


def assert_same(one, other):
    for goal in Goal:
        a, b = one[0].found[goal], other[0].found[goal]
        assert torch.equal(a.point, b.point)
        assert torch.equal(a.distance, b.distance)
        assert a.origin == b.origin
    for a, b in zip(vars(one[0].near).values(), vars(other[0].near).values(), strict=True):
        assert torch.equal(a, b)
    assert one[0].batch_size == other[0].batch_size
    for a, b in zip(one[1], other[1], strict=True):
        assert (a.stage, a.note, a.batch_size) == (b.stage, b.note, b.batch_size)
        assert (a.passes.forwards, a.passes.backwards) == (b.passes.forwards, b.passes.backwards)
        assert a.tensors.keys() == b.tensors.keys()
        assert all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


class Stopped(Exception):
    """The process is thought to have ended here."""


@pytest.fixture
def always(monkeypatch):
    """Write after every tick."""
    monkeypatch.setattr(Underway, "every", 0.0)


def until_it_ends(attempt, most=1000):
    """Try again after every stop; gives the result and the number of stops."""
    for stops in range(most):
        try:
            return attempt(), stops
        except Stopped:
            pass
    raise AssertionError("no progress")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["cpr", "confidence"])
def test_stopped_after_every_tick_it_ends_as_if_it_had_not_been(rule, kind, tmp_path, monkeypatch):
    stages = stages_of(kind, rule)
    whole = evaluate(rule, stages)
    assert any(len(unit.tensors) for unit in whole[1][1:])  # something is found at all
    after_tick = Underway.after_tick
    done = []

    def stop(self, state):
        after_tick(self, state)
        done.append(1)
        raise Stopped

    monkeypatch.setattr(Underway, "after_tick", stop)
    resumed, stops = until_it_ends(lambda: evaluate(rule, stages, Store(tmp_path, {})))
    assert stops == len(done) >= (3 if kind == "proposer" else 6)
    assert_same(resumed, whole)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["cpr", "confidence"])
def test_stopped_in_the_middle_of_a_tick_it_does_that_tick_again(rule, kind, tmp_path):
    stages = stages_of(kind, rule)
    whole = evaluate(rule, stages)

    def attempt():
        calls = []

        def stop(module, args):
            calls.append(1)
            if len(calls) > 45:
                raise Stopped

        return evaluate(rule, stages, Store(tmp_path, {}), stop)

    resumed, stops = until_it_ends(attempt)
    assert stops or (rule, kind) != ("cpr", "loss")  # the others take few calls
    assert_same(resumed, whole)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.usefixtures("always")
def test_asking_the_device_seldom_is_resumed_too(tmp_path, monkeypatch):
    init = Search.__init__

    def rarely(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.poll = 4  # as on a GPU

    monkeypatch.setattr(Search, "__init__", rarely)
    test_stopped_after_every_tick_it_ends_as_if_it_had_not_been(
        "cpr", "rounds", tmp_path, monkeypatch
    )


@pytest.mark.usefixtures("always")
def test_batches_that_memory_made_smaller_are_resumed_as_such(tmp_path, monkeypatch):
    stages = stages_of("rounds", "cpr")
    advance = Search._advance

    def refuse(self, batch, *rest):
        if len(batch.ages) > 2 and self.attack.goal is Goal.REJECTED and self.ticks > 2:
            raise torch.OutOfMemoryError("out of memory")
        advance(self, batch, *rest)

    monkeypatch.setattr(Search, "_advance", refuse)
    whole = evaluate("cpr", stages)
    assert [unit.batch_size for unit in whole[1]] == [0, 0, 2]
    test_stopped_after_every_tick_it_ends_as_if_it_had_not_been(
        "cpr", "rounds", tmp_path, monkeypatch
    )


def half_done(folder, ticks=9):
    """A store that was left in the middle of a stage; gives the partial file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Underway, "every", 0.0)
        after_tick, done = Underway.after_tick, []

        def stop(self, state):
            after_tick(self, state)
            done.append(1)
            if len(done) == ticks:
                raise Stopped

        patch.setattr(Underway, "after_tick", stop)
        with pytest.raises(Stopped):
            evaluate("confidence", stages_of("loss", "confidence"), Store(folder, {}))
    (file,) = folder.rglob("*.partial")
    return file


SPOILT = {
    "truncated": lambda data: data[:-100],
    "empty": lambda data: b"",
    "a changed byte": lambda data: data[:-1000] + bytes([data[-1000] ^ 1]) + data[-999:],
    "another layout": lambda data: data.replace(storing._LAYOUT.encode(), b"cpr-wrap layout 0", 1),
    "something else": lambda data: b"PK\x03\x04" + 300 * b"\0",
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_partial_file_that_cannot_be_read_is_ignored(how, tmp_path):
    stages = stages_of("loss", "confidence")
    file = half_done(tmp_path)
    file.write_bytes(SPOILT[how](file.read_bytes()))
    with pytest.warns(UserWarning, match=f"{file.name} .*; its work is repeated"):
        again = evaluate("confidence", stages, Store(tmp_path, {}))
    assert_same(again, evaluate("confidence", stages))
    assert not file.exists()


def test_a_partial_file_saves_the_work_before_it(tmp_path):
    stages = stages_of("loss", "confidence")
    calls = []
    whole = evaluate("confidence", stages, hook=lambda *_: calls.append(1))
    half_done(tmp_path, ticks=20)
    again, known = [], []
    for heard in (again, known):
        resumed = evaluate(
            "confidence", stages, Store(tmp_path, {}), lambda *_, heard=heard: heard.append(1)
        )
        assert_same(resumed, whole)
    # Each tick takes one batch or more; what is known is put to the model once more.
    assert len(again) <= len(calls) - 20 + len(known)


def test_finished_units_are_never_written_again(tmp_path, monkeypatch):
    half_done(tmp_path)
    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.unit")}
    assert stamps
    evaluate("confidence", stages_of("loss", "confidence"), Store(tmp_path, {}))
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in stamps.items())


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "error", [OSError("no space left"), MemoryError(), RuntimeError("can't allocate memory")]
)
def test_a_partial_file_that_cannot_be_written_is_only_warned_of(error, tmp_path, monkeypatch):
    write = storing.write_sealed

    def fail(file, *rest):
        if file.suffix == ".partial":
            raise error
        write(file, *rest)

    monkeypatch.setattr(storing, "write_sealed", fail)
    stages = stages_of("loss", "confidence")
    with pytest.warns(UserWarning, match="could not write"):
        done = evaluate("confidence", stages, Store(tmp_path, {}))
    assert_same(done, evaluate("confidence", stages))


@pytest.mark.usefixtures("always")
def test_other_errors_while_writing_are_not_hidden(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(storing, "write_sealed", fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        evaluate("confidence", stages_of("loss", "confidence"), Store(tmp_path, {}))


@pytest.mark.parametrize(("took", "pause"), [(0, 20), (1, 20), (3, 27), (60, 40)])
def test_writes_are_some_time_apart(took, pause, tmp_path, monkeypatch):
    clock, writes = [100.0], []

    def write(*_):
        writes.append(clock[0])
        clock[0] += took

    monkeypatch.setattr(storing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(storing, "write_sealed", write)
    model, x, y = make("confidence", count=2)
    block = Block(model, x, y, y, eps=0.1, norm="Linf", batch_size=2)
    unit = Underway(block, Passes(), tmp_path / "file")
    for _ in range(200):
        clock[0] += 1
        unit.after_tick(dict)
    assert writes[0] == 120  # short units are not written at all
    assert {b - a for a, b in pairwise(writes)} == {took + pause}


def test_time_spent_before_a_stop_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(Underway, "every", 0.0)
    clock = [100.0]
    monkeypatch.setattr(storing.time, "perf_counter", lambda: clock[0])
    model, x, y = make("confidence", count=2)
    block = Block(model, x, y, y, eps=0.1, norm="Linf", batch_size=2)
    first = Underway(block, Passes(3, 4, 2), tmp_path / "file")
    clock[0] += 7
    first.after_tick(dict)
    clock[0] += 1000
    passes = Passes()
    second = Underway(block, passes, tmp_path / "file")
    clock[0] += 2
    assert second.seconds == 9
    assert (passes.forwards, passes.backwards, passes.smoothed) == (3, 4, 2)


SCRIPT = """
import sys, time
from tests.engine.test_partial import slow_curve
slow_curve(sys.argv[1], sys.argv[2], 0.005)
print("finished")
"""


@dataclass(frozen=True)
class OneLongStage:
    """A budget whose work is nearly all in one stage."""

    name: str = "one long stage"

    def stages(self, rule, eps):
        settings = {"steps": 19, "step": 0.05, "starts": (0, 1, 2), "select": "loss"}
        return (Attack(objective=confident_mistake, goal=Goal.ACCEPTED_MISTAKE, **settings),)


def slow_curve(store, log, seconds=0.0, every=0.0):
    """Evaluate with a network that takes its time and notes every call."""
    torch.set_num_threads(1)
    Underway.every = every
    model, x, y = make("confidence", count=6)
    with open(log, "ab", buffering=0) as out:

        def slow(module, args):
            out.write(b".")
            time.sleep(seconds)

        model.base.register_forward_pre_hook(slow)
        return robustness_curve(model, x, y, 0.1, budget=OneLongStage(), store=store, batch_size=6)


@pytest.mark.integration
def test_kill_9_in_a_long_stage_loses_no_more_than_its_last_tick(tmp_path, monkeypatch):
    monkeypatch.setattr(Underway, "every", 0.0)  # slow_curve sets it; this sets it back
    whole = slow_curve(None, tmp_path / "whole")
    calls = (tmp_path / "whole").stat().st_size
    assert calls > 150
    log = tmp_path / "killed"
    log.touch()
    process = start("-c", SCRIPT, str(tmp_path / "store"), str(log), cwd=ROOT)
    deadline = time.monotonic() + 300
    while log.stat().st_size < calls // 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert "finished" not in process.wait().stdout
    before = log.stat().st_size
    assert before >= calls // 2
    assert len(list((tmp_path / "store").rglob("*.unit"))) == 1  # the clean images
    assert len(list((tmp_path / "store").rglob("*.partial"))) == 1
    resumed = slow_curve(tmp_path / "store", log)
    repeated = log.stat().st_size - calls
    # Any rerun asks about probe images and known points again; beside that, the last tick is lost.
    slow_curve(tmp_path / "store", tmp_path / "replayed")
    assert repeated <= 2 * (tmp_path / "replayed").stat().st_size + 8
    assert resumed.records == whole.records
    assert resumed.origins == whole.origins
    assert resumed.passes_per_image == whole.passes_per_image
    for name, points in vars(whole.points).items():
        assert torch.equal(points, getattr(resumed.points, name))
