"""Stored work: found again only for the very same evaluation, and after a kill."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_wrap._files import digest
from cpr_wrap.attacks.adaptive import Attack, as_stage
from cpr_wrap.engine import evaluate
from cpr_wrap.engine.evaluate import stage_text
from cpr_wrap.engine.store import model_digest, same_answers, weights_digest
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.objective import Goal, objective
from cpr_wrap.rules import Confidence
from cpr_wrap.selective import SelectiveClassifier
from tests.budgets import Little, Longer
from tests.evaluation.test_curve import make
from tests.processes import ROOT, start
from tests.toys import Curved


def units(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.unit"))


def test_the_rerun_reads_everything_from_the_store(tmp_path, monkeypatch):
    model, x, y = make("cpr")
    first = robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path, block_size=3)
    monkeypatch.setattr(
        "cpr_wrap.engine.evaluate._do", lambda *_: pytest.fail("work was done again")
    )
    again = robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path, block_size=3)
    assert again.records == first.records
    assert again.passes == first.passes
    assert again.origins == first.origins
    assert again.provenance == first.provenance
    for name, points in vars(first.points).items():
        assert torch.equal(points, getattr(again.points, name))


def test_a_run_that_was_cut_anywhere_ends_like_an_uninterrupted_one(tmp_path):
    model, x, y = make("cpr")
    whole = robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path / "a", block_size=3)
    files = units(tmp_path / "a")
    for cut in (0, 1, 5, len(files) - 1):
        folder = tmp_path / f"cut{cut}"
        for file in files[:cut]:
            target = folder / file.relative_to(tmp_path / "a")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
        resumed = robustness_curve(model, x, y, 0.1, budget=Little(), store=folder, block_size=3)
        assert resumed.records == whole.records
        assert resumed.origins == whole.origins


@pytest.mark.parametrize(
    "change",
    [
        {"eps": 0.31},
        {"seed": 1},
        {"budget": Longer(name="little")},
        {"batch_size": 7},
        {"norm": "L2"},
    ],
)
def test_other_settings_never_reuse_a_store(tmp_path, change):
    model, x, y = make("confidence", count=3)
    base = {"eps": 0.3, "budget": Little(), "store": tmp_path / "store"}
    robustness_curve(model, x, y, **base)
    before = {file: file.stat().st_mtime_ns for file in units(tmp_path / "store")}
    fresh = robustness_curve(model, x, y, **{**base, **change, "store": tmp_path / "fresh"})
    mixed = robustness_curve(model, x, y, **{**base, **change})
    assert mixed.records == fresh.records
    assert fresh.records.outer_broken.any() or fresh.records.rejected_radius.isfinite().any()
    assert len(list((tmp_path / "store").iterdir())) == 2
    after = {file: file.stat().st_mtime_ns for file in units(tmp_path / "store")}
    assert before.items() < after.items()


def test_other_weights_rules_or_data_never_reuse_a_store(tmp_path):
    model, x, y = make("confidence", count=3)
    robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path)
    stricter = model.with_rule(Confidence(threshold=0.9))
    other = robustness_curve(stricter, x, y, 0.1, budget=Little(), store=tmp_path)
    assert other.records == robustness_curve(stricter, x, y, 0.1, budget=Little()).records
    moved = robustness_curve(model, 1 - x, y, 0.1, budget=Little(), store=tmp_path)
    assert moved.records == robustness_curve(model, 1 - x, y, 0.1, budget=Little()).records
    with torch.no_grad():
        model.base.second.add_(1.0 * torch.randn_like(model.base.second))
    tuned = robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path)
    assert tuned.records == robustness_curve(model, x, y, 0.1, budget=Little()).records


def test_weights_that_probes_do_not_show_have_a_folder_of_their_own(tmp_path):
    model, x, y = make("confidence", count=1)
    for tiny in (0.0, 1e-7):
        with torch.no_grad():
            model.base.second.mul_(1 + tiny)
        robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path)
    folders = sorted(file.parent for file in tmp_path.rglob("manifest.json"))
    first, second = (json.loads((each / "manifest.json").read_text()) for each in folders)
    assert same_answers(first["answers"], second["answers"])
    assert first["settings"]["model"] != second["settings"]["model"]


def test_an_open_batch_size_is_settled_by_the_first_run(tmp_path, monkeypatch):
    model, x, y = make("confidence", count=3)
    first = robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path)
    monkeypatch.setattr("cpr_wrap.evaluation.curve.auto_batch_size", lambda *_: 2)
    again = robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path)
    assert again.settings.batch_size == first.settings.batch_size != 2
    manifest = json.loads(next(tmp_path.rglob("manifest.json")).read_text())
    assert manifest["batch_size"] == first.settings.batch_size


def test_more_images_reuse_the_blocks_that_are_there(tmp_path):
    model, x, y = make("confidence")
    options = {"budget": Little(), "store": tmp_path, "block_size": 4, "donors": (x[:4], y[:4])}
    robustness_curve(model, x[:4], y[:4], 0.1, **options)
    before = {file: file.stat().st_mtime_ns for file in units(tmp_path)}
    robustness_curve(model, x, y, 0.1, **options)
    after = {file: file.stat().st_mtime_ns for file in units(tmp_path)}
    assert len(after) == 2 * len(before)
    assert all(after[file] == stamp for file, stamp in before.items())


def costs(curve):
    return [(stage.attack, stage.forwards, stage.backwards) for stage in curve.passes]


def test_a_batch_that_memory_made_smaller_stays_so_after_a_resume(tmp_path):
    model, x, y = make("confidence")

    def refuse(module, args):
        if len(args[0]) > 4:
            raise torch.OutOfMemoryError("out of memory")

    settings = {"eps": 0.1, "budget": Little(), "batch_size": 8, "store": tmp_path}
    hook = model.base.register_forward_pre_hook(refuse)
    whole = robustness_curve(model, x, y, **settings)
    hook.remove()
    for file in units(tmp_path)[1:]:  # killed after the first unit
        file.unlink()
    sizes = []
    model.base.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    resumed = robustness_curve(model, x, y, **settings)
    assert resumed.records == whole.records
    # The checks beforehand are made anew, on as many images as memory allows by now.
    assert costs(resumed)[1:] == costs(whole)[1:]
    assert resumed.provenance.notes == whole.provenance.notes != ()
    # Afterwards risk and coverage are measured, in batches of their own; before, probes.
    first = sizes.index(4)
    assert max(sizes[first:-2]) == 4


def test_digests_tell_values_types_shapes_and_names_apart():
    a = torch.arange(4)
    assert digest(a) == digest(a.clone())
    assert len({digest(a), digest(a.int()), digest(a.view(2, 2)), digest(a + 1)}) == 4
    one, two = Curved(seed=0), Curved(seed=1)
    assert weights_digest(one) == weights_digest(Curved(seed=0)) != weights_digest(two)


SCRIPT = """
import sys, time, torch
from pathlib import Path
from cpr_wrap.engine.store import Underway
from cpr_wrap.evaluation import robustness_curve
from tests.budgets import Little
from tests.evaluation.test_curve import make
torch.set_num_threads(1)


def wait(self, run):
    if len(list(Path(sys.argv[1]).rglob("*.unit"))) > 3:
        time.sleep(300)  # to be killed at leisure


Underway.after_tick = wait
model, x, y = make("cpr", count=6)
curve = robustness_curve(model, x, y, 0.1, budget=Little(), store=sys.argv[1], block_size=2)
print("finished")
"""


@pytest.mark.integration
def test_kill_9_loses_only_the_unit_under_way(tmp_path, monkeypatch):
    process = start("-c", SCRIPT, str(tmp_path / "killed"), cwd=ROOT)
    deadline = time.monotonic() + 120
    while len(units(tmp_path / "killed")) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert "finished" not in process.wait().stdout
    done = units(tmp_path / "killed")
    assert len(done) >= 3
    stamps = [file.stat().st_mtime_ns for file in done]
    model, x, y = make("cpr", count=6)
    settings = {"eps": 0.1, "budget": Little(), "block_size": 2}
    do, again = evaluate._do, []
    monkeypatch.setattr(evaluate, "_do", lambda *words: again.append(1) or do(*words))
    resumed = robustness_curve(model, x, y, store=tmp_path / "killed", **settings)
    assert len(again) == len(units(tmp_path / "killed")) - len(done)
    assert stamps == [file.stat().st_mtime_ns for file in done]
    assert len(list((tmp_path / "killed").iterdir())) == 1  # the same evaluation, so one folder
    assert resumed.records == robustness_curve(model, x, y, **settings).records


class Bent(torch.nn.Module):
    """A line that is bent as asked."""

    def __init__(self, power=2.0):
        super().__init__()
        self.power = power
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("shift", torch.zeros(2), persistent=False)
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.layer(x).relu() ** self.power + self.shift


class Smooth(Bent):
    def forward(self, x):
        return self.layer(x).sigmoid() ** self.power + self.shift


def selective(network):
    return SelectiveClassifier(network.eval(), Confidence(threshold=0.6))


def test_what_a_network_is_made_of_is_part_of_the_key():
    shifted, swapped = Bent(), torch.nn.Sequential(Bent(), torch.nn.ReLU())
    shifted.shift += 1
    other = torch.nn.Sequential(Bent(), torch.nn.GELU())
    networks = [Bent(), Smooth(), shifted, swapped, other]
    assert len({weights_digest(network) for network in networks[:3]}) == 1
    assert len({model_digest(selective(network)) for network in networks}) == len(networks)
    assert model_digest(selective(Bent())) == model_digest(selective(Bent()))


class Shows(Bent):
    """Prints an object, and with it a place in memory."""

    def __init__(self):
        super().__init__()
        self.thing = object()

    def extra_repr(self):
        return f"{self.thing}"


def test_places_in_memory_do_not_count():
    kept = Shows(), Shows()
    assert repr(kept[0]) != repr(kept[1])
    assert model_digest(selective(kept[0])) == model_digest(selective(kept[1]))


def test_a_point_that_rounding_may_have_turned_is_kept_and_said(tmp_path, monkeypatch):
    model, x, y = make("confidence")
    settings = {"eps": 0.1, "budget": Little(), "store": tmp_path}
    whole = robustness_curve(model, x, y, **settings)
    monkeypatch.setattr("cpr_wrap.engine.block.Block.doubtful_points", lambda _: (20, 1))
    with pytest.warns(UserWarning, match=r"1 of 20 stored points .* due to rounding"):
        assert robustness_curve(model, x, y, **settings).records == whole.records


TABLE = torch.tensor([0.3, 0.0])


class Reads(Bent):
    """Reads things that are neither weights nor structure."""

    factor = 1.0

    def __init__(self):
        super().__init__()
        self.plain = torch.zeros(2)
        self.numbers = {"shift": 0.0}
        self.array = np.zeros(2, dtype=np.float32)
        self.function = torch.zeros_like
        self.hidden = [torch.nn.Linear(2, 2, bias=False)]
        torch.nn.init.zeros_(self.hidden[0].weight)

    def helper(self, x):
        return 0 * x

    def forward(self, x):
        out = self.factor * super().forward(x) + self.plain + self.numbers["shift"] * x
        out = out + torch.from_numpy(self.array) + self.function(x) + self.hidden[0](x)
        return out + self.helper(x) + TABLE


def _hook(network, patch):
    network.register_forward_hook(lambda module, args, out: out * torch.tensor([1.0, 1.2]))


def _forward(network, patch):
    plain = network.forward
    network.forward = lambda x: plain(x) * torch.tensor([1.0, 1.2])


def _inplace(tensor):
    return lambda network, patch: tensor(network).add_(torch.tensor([0.0, 0.2]))


CHANGES = {
    "a plain tensor": _inplace(lambda network: network.plain),
    "a dictionary": lambda network, patch: network.numbers.update(shift=0.5),
    "an array": lambda network, patch: network.array.__iadd__(np.float32([0.0, 0.2])),
    "a function": lambda network, patch: setattr(network, "function", torch.ones_like),
    "a helper method": lambda network, patch: patch.setattr(
        Reads, "helper", lambda self, x: 0.1 * x
    ),
    "a class attribute": lambda network, patch: patch.setattr(Reads, "factor", 1.2),
    "a hook": _hook,
    "an instance's forward": _forward,
    "a module in a list": lambda network, patch: torch.nn.init.eye_(network.hidden[0].weight),
    "a global tensor": lambda network, patch: patch.setitem(globals(), "TABLE", TABLE + 0.2),
    "a backward hook": lambda network, patch: network.layer.register_full_backward_hook(
        lambda module, given, _: tuple(2 * g for g in given)
    ),
    "a code change of the rule": lambda network, patch: patch.setattr(
        Confidence, "score", lambda self, view: 0.9 * view.outputs.softmax(dim=1).amax(dim=1)
    ),
    "autocast": lambda network, patch: patch.setattr(
        network, "forward", torch.autocast("cpu", dtype=torch.bfloat16)(network.forward)
    ),
    "a small number": lambda network, patch: patch.setattr(Reads, "factor", 1.0005),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_store_never_returns_another_models_work(what, tmp_path, monkeypatch):
    x = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 0, 1])
    model = selective(Reads())
    settings = {"eps": 0.2, "budget": Little()}
    with torch.no_grad():
        robustness_curve(model, x, y, store=tmp_path, **settings)
        CHANGES[what](model.base, monkeypatch)
        fresh = robustness_curve(model, x, y, **settings)
        with pytest.warns(UserWarning, match="answers differently; it is not used"):
            stored = robustness_curve(model, x, y, store=tmp_path, **settings)
    assert stored.records == fresh.records
    assert len(list(tmp_path.iterdir())) == 2


def test_points_that_no_longer_hold_are_searched_again(tmp_path, monkeypatch):
    model, x, y = make("confidence")
    settings = {"eps": 0.1, "budget": Little()}
    robustness_curve(model, x, y, store=tmp_path, **settings)
    # A change that probes do not see.
    monkeypatch.setattr("cpr_wrap.engine.store.same_answers", lambda *_: True)
    model.base.register_forward_hook(lambda module, args, out: out.flip(1))
    fresh = robustness_curve(model, x, y, **settings)
    with pytest.warns(UserWarning, match="do not hold for this model any more: .* evaluated again"):
        stored = robustness_curve(model, x, y, store=tmp_path, **settings)
    assert stored.records == fresh.records


@pytest.mark.parametrize("spoil", [lambda data: data[:-10], lambda data: data[:-9] + b"123456789"])
def test_a_damaged_unit_is_named_and_done_again(tmp_path, spoil):
    model, x, y = make("confidence")
    whole = robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path)
    file = units(tmp_path)[2]
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.warns(UserWarning, match=rf"{file.name} is damaged.*repeated"):
        again = robustness_curve(model, x, y, 0.1, budget=Little(), store=tmp_path)
    assert again.records == whole.records


def test_a_scripted_network_can_be_stored(tmp_path):
    model = selective(torch.jit.trace(Bent().eval(), torch.rand(3, 2)))
    x, y = torch.rand(3, 2), torch.tensor([0, 1, 0])
    first = robustness_curve(model, x, y, 0.2, budget=Little(), store=tmp_path)
    assert (
        robustness_curve(model, x, y, 0.2, budget=Little(), store=tmp_path).records == first.records
    )


@dataclass(frozen=True)
class Transfer:
    """Proposes the mistakes of another network."""

    other: torch.nn.Module
    name = "transfer"

    def perturb(self, model, x, y, eps, *, norm, seed, index):
        return x + eps * self.other(x.flatten(1)).sum().sign()


def by_function(other):
    def transfer(model, x, y, eps):
        return Transfer(other).perturb(model, x, y, eps, norm="Linf", seed=0, index=y)

    return transfer


@pytest.mark.parametrize("make_attack", [Transfer, by_function])
def test_an_attack_with_another_network_in_it_is_another_attack(make_attack):
    texts = [stage_text(as_stage(make_attack(Curved(seed=seed)))) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_objectives_that_share_a_name_are_different_attacks():
    one = objective("X")(lambda view: (view.logits.sum(dim=1),))
    two = objective("X")(lambda view: (-view.logits.sum(dim=1),))
    climb = {"goal": Goal.REJECTED, "steps": 1, "step": 0.1}
    texts = [stage_text(Attack(objective=each, **climb)) for each in (one, one, two)]
    assert texts[0] == texts[1] != texts[2]


class Silent:
    """A proposer that does not tell its settings."""

    name = "silent"

    def perturb(self, model, x, y, eps, *, norm, seed, index):
        return x


def test_a_store_refuses_attacks_that_do_not_tell_their_settings(tmp_path):
    model, x, y = make("confidence", count=2)
    settings = {"eps": 0.1, "budget": Little(), "extras": [Silent()]}
    robustness_curve(model, x, y, **settings)
    with pytest.raises(ValueError, match=r"Silent object.* does not tell its settings.*__repr__"):
        robustness_curve(model, x, y, **settings, store=tmp_path)
