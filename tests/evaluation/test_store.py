"""Stored work: found again only for the very same evaluation, and after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.evaluation.store import digest, network_digest, weights_digest
from cpr_wrap.rules import Confidence
from tests.evaluation.test_curve import make
from tests.toys import Curved


def units(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def test_the_rerun_reads_everything_from_the_store(tmp_path):
    model, x, y = make("cpr")
    first = robustness_curve(model, x, y, 0.1, budget="quick", store=tmp_path, block_size=3)
    model.base.first.register_hook(lambda _: pytest.fail("work was done again"))
    calls = []
    model.base.register_forward_pre_hook(lambda *_: calls.append(1))
    again = robustness_curve(model, x, y, 0.1, budget="quick", store=tmp_path, block_size=3)
    assert len(calls) <= 2  # the probes of the number of classes and of the batch size
    assert again.records == first.records
    assert again.details["passes"] == first.details["passes"]
    assert again.details["provenance"] == first.details["provenance"]
    for name, points in first.details["points"].items():
        assert torch.equal(points, again.details["points"][name])


def test_a_run_that_was_cut_anywhere_ends_like_an_uninterrupted_one(tmp_path):
    model, x, y = make("cpr")
    whole = robustness_curve(model, x, y, 0.1, budget="quick", store=tmp_path / "a", block_size=4)
    files = units(tmp_path / "a")
    for cut in (0, 1, 5, len(files) - 1):
        folder = tmp_path / f"cut{cut}"
        for file in files[:cut]:
            target = folder / file.relative_to(tmp_path / "a")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
        resumed = robustness_curve(model, x, y, 0.1, budget="quick", store=folder, block_size=4)
        assert resumed.records == whole.records
        assert resumed.details["provenance"] == whole.details["provenance"]


@pytest.mark.parametrize(
    "change",
    [{"eps": 0.11}, {"seed": 1}, {"budget": "standard"}, {"batch_size": 7}, {"norm": "L2"}],
)
def test_other_settings_never_reuse_a_store(tmp_path, change):
    model, x, y = make("confidence", count=3)
    base = {"eps": 0.1, "budget": "quick", "store": tmp_path}
    robustness_curve(model, x, y, **base)
    before = units(tmp_path)
    fresh = robustness_curve(model, x, y, **{**base, **change, "store": tmp_path / "fresh"})
    mixed = robustness_curve(model, x, y, **{**base, **change})
    assert mixed.records == fresh.records
    assert units(tmp_path)[: len(before)] != before or len(units(tmp_path)) > len(before)
    assert len({file.parent.parent for file in units(tmp_path)}) >= 2


def test_other_weights_rules_or_data_never_reuse_a_store(tmp_path):
    model, x, y = make("confidence", count=3)
    robustness_curve(model, x, y, 0.1, budget="quick", store=tmp_path)
    stricter = model.with_rule(Confidence(threshold=0.9))
    other = robustness_curve(stricter, x, y, 0.1, budget="quick", store=tmp_path)
    assert other.records == robustness_curve(stricter, x, y, 0.1, budget="quick").records
    moved = robustness_curve(model, 1 - x, y, 0.1, budget="quick", store=tmp_path)
    assert moved.records == robustness_curve(model, 1 - x, y, 0.1, budget="quick").records
    with torch.no_grad():
        model.base.second.add_(1.0 * torch.randn_like(model.base.second))
    tuned = robustness_curve(model, x, y, 0.1, budget="quick", store=tmp_path)
    assert tuned.records == robustness_curve(model, x, y, 0.1, budget="quick").records


def test_an_open_batch_size_is_settled_by_the_first_run(tmp_path, monkeypatch):
    model, x, y = make("confidence", count=3)
    first = robustness_curve(model, x, y, 0.1, budget="quick", store=tmp_path)
    monkeypatch.setattr("cpr_wrap.evaluation.curve.auto_batch_size", lambda *_: 2)
    again = robustness_curve(model, x, y, 0.1, budget="quick", store=tmp_path)
    assert again.details["settings"]["batch_size"] == first.details["settings"]["batch_size"] != 2
    manifest = json.loads(next(tmp_path.rglob("manifest.json")).read_text())
    assert manifest["batch_size"] == first.details["settings"]["batch_size"]


def test_more_images_reuse_the_blocks_that_are_there(tmp_path):
    model, x, y = make("confidence")
    robustness_curve(model, x[:4], y[:4], 0.1, budget="quick", store=tmp_path, block_size=4)
    before = {file: file.stat().st_mtime_ns for file in units(tmp_path)}
    robustness_curve(model, x, y, 0.1, budget="quick", store=tmp_path, block_size=4)
    after = {file: file.stat().st_mtime_ns for file in units(tmp_path)}
    assert len(after) == 2 * len(before)
    assert all(after[file] == stamp for file, stamp in before.items())


def test_a_batch_that_memory_made_smaller_stays_so_after_a_resume(tmp_path):
    model, x, y = make("confidence")

    def refuse(module, args):
        if len(args[0]) > 4:
            raise torch.OutOfMemoryError("out of memory")

    settings = {"eps": 0.1, "budget": "quick", "batch_size": 8, "store": tmp_path}
    hook = model.base.register_forward_pre_hook(refuse)
    whole = robustness_curve(model, x, y, **settings)
    hook.remove()
    for file in units(tmp_path)[1:]:  # killed after the first unit
        file.unlink()
    sizes = []
    model.base.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    resumed = robustness_curve(model, x, y, **settings)
    assert resumed.records == whole.records
    assert resumed.details["passes_total"] == whole.details["passes_total"]
    assert resumed.details["notes"] == whole.details["notes"] != []
    # Afterwards risk and coverage are measured, in batches of their own.
    assert max(sizes[:-2]) == 4


def test_digests_tell_values_types_shapes_and_names_apart():
    a = torch.arange(4)
    assert digest(a) == digest(a.clone())
    assert len({digest(a), digest(a.int()), digest(a.view(2, 2)), digest(a + 1)}) == 4
    one, two = Curved(seed=0), Curved(seed=1)
    assert weights_digest(one) == weights_digest(Curved(seed=0)) != weights_digest(two)


SCRIPT = """
import sys, torch
from cpr_wrap.evaluation import robustness_curve
from tests.evaluation.test_curve import make
torch.set_num_threads(1)
model, x, y = make("cpr", count=6)
curve = robustness_curve(model, x, y, 0.1, budget="quick", store=sys.argv[1], block_size=2)
print("finished")
"""


def test_kill_9_loses_only_the_unit_under_way(tmp_path):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "killed")]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while len(units(tmp_path / "killed")) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert b"finished" not in process.communicate()[0]
    done = units(tmp_path / "killed")
    assert len(done) >= 3
    stamps = [file.stat().st_mtime_ns for file in done]
    model, x, y = make("cpr", count=6)
    settings = {"eps": 0.1, "budget": "quick", "block_size": 2}
    resumed = robustness_curve(model, x, y, store=tmp_path / "killed", **settings)
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


def test_networks_with_the_same_weights_are_told_apart_by_what_they_compute():
    shifted, swapped = Bent(), torch.nn.Sequential(Bent(), torch.nn.ReLU())
    shifted.shift += 1
    other = torch.nn.Sequential(Bent(), torch.nn.GELU())
    networks = [Bent(), Bent(3.0), Smooth(), shifted, swapped, other]
    assert len({weights_digest(network) for network in networks[:4]}) == 1
    assert len({network_digest(network) for network in networks}) == len(networks)
    assert network_digest(Bent()) == network_digest(Bent())


class Silent:
    """A proposer that does not tell its settings."""

    name = "silent"

    def perturb(self, model, x, y, eps, *, norm, seed, index):
        return x


def test_a_store_refuses_attacks_that_do_not_tell_their_settings(tmp_path):
    model, x, y = make("confidence", count=2)
    settings = {"eps": 0.1, "budget": "quick", "extras": [Silent()]}
    robustness_curve(model, x, y, **settings)
    with pytest.raises(ValueError, match=r"Silent object.* does not tell its settings.*__repr__"):
        robustness_curve(model, x, y, **settings, store=tmp_path)
