"""Networks, rules, attacks, budgets and images of one's own, from the folder one is in."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cpr_wrap.evaluation import load_result, results
from tests.processes import run

_MODULES = {
    "ownnet": """
from torch import nn


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, x):
        return self.layer(x.flatten(1))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 8)

    def forward(self, x):
        return self.layer(x).flatten(1)
""",
    "ownrule": """
from dataclasses import dataclass

from cpr_wrap.objective import confident_mistake, low_confidence
from cpr_wrap.rule import RejectionRule, register_rule


@dataclass(frozen=True, kw_only=True)
class Margin(RejectionRule):
    inner = (low_confidence,)
    outer = (confident_mistake,)
    width: float = 1.0

    def score(self, view):
        first, second = view.logits.topk(2, dim=1).values.unbind(dim=1)
        return first - second - self.width
""",
    "ownregistered": """
from cpr_wrap.rule import register_rule
from ownrule import Margin


@register_rule("own-margin")
class Registered(Margin):
    pass
""",
    "ownattack": """
import torch


def darken(model, x, y, eps):
    return (x - eps).clamp(0, 1)


def short(model, x, y, eps):
    return x[:-1]


def nothing(model, x, y, eps):
    return x / 0


def flat(model, x, y, eps):
    return x.flatten(1)


def silent(model, x, y, eps):
    pass
""",
    "ownbudget": """
from cpr_wrap.attacks.adaptive import as_stage
from ownattack import darken


class Dark:
    name = "dark"

    def stages(self, rule, eps):
        return (as_stage(darken),)
""",
    "owndata": """
import torch


def load():
    return torch.linspace(0, 1, 12 * 784).reshape(12, 1, 28, 28), torch.arange(12) % 10


def random():
    return torch.utils.data.TensorDataset(torch.rand(4, 1, 28, 28), torch.arange(4))
""",
}


@pytest.fixture
def project(saved, type_command, tmp_path):
    """A folder with code, weights under usual names, and a way to type commands there."""
    from safetensors.torch import load_file

    for name, text in _MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    state = load_file(saved / "model.safetensors")
    renamed = {name.replace("1.", "module.layer."): value for name, value in state.items()}
    torch.save({"epoch": 7, "model_state_dict": renamed}, tmp_path / "weights.pt")

    def run(command, *words, ok=True):
        own = ("local:weights.pt", "--network", "ownnet:Linear")
        answer = type_command(command, *own, *words)
        assert not ok or answer.exit_code == 0, answer.output
        return answer

    return run


_QUICK = ("--eps", "0.05", "--budget", "tests.budgets:Dark", "--out", "here")


def test_network_rule_attack_and_data_by_their_addresses(project, type_command):
    words = ("--rule", "ownrule:Margin", "--attack", "ownattack:darken", "--set", "width=0.5")
    project("curve", "--dataset", "owndata:load", *words, *_QUICK)
    found = load_result("here")
    assert (found.about.model, found.about.network) == ("local:weights.pt", "ownnet:Linear")
    assert found.about.dataset == "owndata:load"
    assert found.settings.rule.config == {"name": "ownrule:Margin", "threshold": 0.0, "width": 0.5}
    assert "darken" in {stage.attack for stage in found.passes}
    assert type_command("verify", "here").exit_code == 0
    assert type_command("report", "here").exit_code == 0
    # The recorded command makes the same run again.
    words = shlex.split(found.about.command)[1:]
    assert type_command(*words, "--json").exit_code == 0
    assert load_result("here").records == found.records


def test_a_module_that_registers_is_imported_first(project, type_command):
    words = ("--import", "ownregistered", "--rule", "own-margin", "--num", "4")
    project("curve", "--dataset", "mnist", *words, *_QUICK)
    found = load_result("here")
    assert found.settings.rule.name == "own-margin"
    assert found.about.imports == ("ownregistered",)
    assert type_command("verify", "here").exit_code == 0


@pytest.mark.integration
def test_verify_finds_recorded_code_here_and_asks_for_it_elsewhere(project, tmp_path):
    words = ("--import", "ownregistered", "--rule", "own-margin", "--num", "4")
    project("curve", "--dataset", "mnist", *words, *_QUICK)
    (tmp_path / "empty").mkdir()

    def verify(folder, *words, where=tmp_path):
        done = run("-m", "cpr_wrap", "verify", str(folder), *words, cwd=where)
        return done.returncode, done.stdout + done.stderr

    assert verify("here")[0] == 0
    code, text = verify(tmp_path / "here", where=tmp_path / "empty")
    assert code == 1
    assert "needs 'ownregistered', code that is not in the current folder" in text
    # A folder that brings its own code along does not get it run.
    (tmp_path / "here" / "ownregistered.py").write_text("print('run!')")
    code, text = verify(".", where=tmp_path / "here")
    assert (code, "run!" in text, "needs 'ownregistered'" in text) == (1, False, True)


def test_an_attack_that_cannot_be_used_is_found_before_the_rule_is_calibrated(project, monkeypatch):
    monkeypatch.setattr("cpr_wrap.cli._load.calibrate", lambda *_, **__: pytest.fail("too late"))
    words = ("--dataset", "mnist", "--num", "4", "--rule", "confidence", "--calibrate", "0.1")
    answer = project("curve", *words, "--attack", "ownattack:short", *_QUICK, ok=False)
    assert answer.exit_code == 1
    assert "error: attack 'short': expected one point per image" in answer.stderr


def test_one_attack_of_ones_own(project):
    words = ("ownattack:darken", "--dataset", "mnist", "--num", "4", "--eps", "0.1", "--json")
    counts = json.loads(project("attack", *words, "--rule", "none").stdout)
    assert (counts["attack"], counts["images"], counts["problems"]) == ("darken", 4, [])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("short", r"attack 'short': expected one .*\(1, 1, 28, 28\), got shape \(0, 1, 28, 28\)"),
        ("nothing", "attack 'nothing': expected finite points, got NaN or infinity"),
        ("flat", r"attack 'flat': expected one .* got shape \(1, 784\)"),
        ("silent", "attack 'silent': expected a tensor of points, got NoneType"),
    ],
)
def test_an_attack_that_returns_nonsense_is_named(name, complaint, project):
    words = ("--dataset", "mnist", "--num", "4", "--eps", "0.001", "--rule", "none")
    answer = project("attack", f"ownattack:{name}", *words, ok=False)
    assert answer.exit_code == 1
    assert re.search(complaint, answer.stderr), answer.stderr


def test_a_budget_of_ones_own(project):
    words = ("--dataset", "mnist", "--num", "4", "--rule", "none", "--eps", "0.1", "--out", "here")
    project("curve", "--budget", "ownbudget:Dark", *words)
    assert load_result("here").settings.budget == "dark"


_TINY = ("--budget", "ownbudget:Dark", "--eps", "0.1", "--dataset", "mnist", "--num", "4")


def test_a_sweep_over_code_of_ones_own(project, type_command):
    rules = ("--rule", "ownrule:Margin", "--rule", "ownrule:Margin:width=0.5")
    own = ("--model", "local:weights.pt", "--network", "ownnet:Linear")
    answer = type_command("sweep", *own, *rules, *_TINY, "--out", "all")
    assert answer.exit_code == 0, answer.output
    found = load_result("all/weights.pt+ownrule-Margin-width=0.5+Linf-0.1+ownbudget-Dark")
    assert found.settings.rule.config["width"] == 0.5
    assert (found.about.network, found.settings.budget) == ("ownnet:Linear", "dark")
    assert (
        type_command("verify", "all/weights.pt+ownrule-Margin+Linf-0.1+ownbudget-Dark").exit_code
        == 0
    )
    again = type_command("sweep", *own, *rules, *_TINY, "--out", "all")
    assert again.stderr.count("done before") == 2


def test_a_sweep_calibrates_on_other_images_of_ones_own(project, type_command):
    words = ("sweep", "--model", "local:weights.pt", "--network", "ownnet:Linear", "--eps", "0.1")
    words += ("--dataset", "owndata:load", "--budget", "ownbudget:Dark", "--out", "all")
    words += ("--rule", "confidence:calibrate=0.1")
    answer = type_command(*words)
    assert answer.exit_code == 2
    assert "owndata:load has no validation part; pass --validation" in answer.stderr
    assert type_command(*words, "--validation", "mnist").exit_code == 0
    [found] = results("all")
    assert found.calibration.num_images == 1000


def test_advice_with_a_budget_of_ones_own(project):
    few = ("--screening", "ownbudget:Dark", "--radii", "0.01", "--try-steps", "2")
    answer = project("advise", *_TINY, *few, "--thresholds", "0.5")
    assert "budget dark" in " ".join(answer.stdout.split())


@pytest.mark.integration
def test_a_model_saved_under_a_rule_of_ones_own_is_loaded_again(project, type_command, tmp_path):
    words = ("--dataset", "mnist", "--num", "20", "--rule", "ownrule:Margin", "--out", "set")
    project("calibrate", *words, "--reject-rate", "0.2")
    program = ("-m", "cpr_wrap", "curve")
    done = run(*program, "local:set", "--network", "ownnet:Linear", *_TINY, "--out", "here")
    assert done.returncode == 0, done.stderr
    assert load_result("here").settings.rule.name == "ownrule:Margin"
    # Code that comes along with the model is not run.
    (tmp_path / "set" / "ownrule.py").write_text("print('run!')")
    words = ("local:.", "--network", "ownnet:Linear", *_TINY, "--budget", "quick")
    done = run(*program, *words, cwd=tmp_path / "set")
    assert (done.returncode, "run!" in done.stdout + done.stderr) == (1, False)
    assert "needs 'ownrule:Margin', code that is not in the current folder" in done.stderr


def test_what_is_no_budget_or_rule_is_refused_before_work(project):
    answer = project("curve", "--budget", "ownattack:darken", *_QUICK[:2], ok=False)
    assert "budget: expected one with a name and stages(rule, eps)" in answer.stderr
    answer = project("curve", "--rule", "ownattack:darken", *_QUICK[:2], ok=False)
    assert "ownattack:darken: expected a class of RejectionRule" in answer.stderr


def test_an_npz_file_and_any_of_its_images(project):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    np.savez("mine.npz", images=pixels, labels=np.arange(20) % 10)
    for words, numbers in (
        (("--start", "15", "--num", "3"), [15, 16, 17]),
        (("--indices", "3,8,10-12"), [3, 8, 10, 11, 12]),
    ):
        project("curve", "--dataset", "mine.npz", "--rule", "none", *words, *_QUICK, "--overwrite")
        found = load_result("here")
        assert found.records.index.tolist() == numbers
        assert torch.equal(
            found.points.clean, torch.from_numpy(pixels[numbers])[:, None].float() / 255
        )


def test_any_test_image_of_a_known_data_set(project):
    project("curve", "--dataset", "mnist", "--rule", "none", "--indices", "9005,3", *_QUICK)
    assert load_result("here").records.index.tolist() == [9005, 3]


def test_a_color_folder_becomes_gray_for_a_network_that_takes_gray(type_command, project):
    from ownnet import Conv

    torch.manual_seed(0)
    torch.save(Conv().state_dict(), "conv.pt")
    for name in ("a", "b"):
        Path("photos", name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (200, 100, 50)).save(Path("photos", name, "1.png"))
    Path("map.txt").write_text("a 1\nb 0\n")
    words = ("curve", "local:conv.pt", "--network", "ownnet:Conv", "--dataset", "photos")
    words += ("--rule", "none", "--class-map", "map.txt", *_QUICK)
    answer = type_command(*words)
    assert answer.exit_code == 0, answer.output
    found = load_result("here")
    assert found.points.clean.shape == (2, 1, 8, 8)
    assert found.records.label.tolist() == [1, 0]


def test_a_class_map_is_for_folders(project):
    words = ("--dataset", "mnist", "--class-map", "map.txt", *_QUICK)
    answer = project("curve", *words, ok=False)
    assert "class_map: expected only with a folder of images, got mnist" in answer.stderr


def test_calibrating_on_own_images(project):
    np.savez("val.npz", images=np.zeros((6, 28, 28), np.uint8) + 9, labels=np.arange(6))
    words = ("--rule", "confidence", "--reject-rate", "0.5", "--out", "set")
    answer = project("calibrate", "--dataset", "val.npz", "--num", "5", *words)
    assert answer.stdout.splitlines()[2].endswith("of all 5")
    assert answer.stdout.endswith("load it as local:set --network ownnet:Linear\n")


def test_own_images_have_no_validation_part(project):
    words = ("--rule", "confidence", "--calibrate", "0.1", *_QUICK)
    answer = project("curve", "--dataset", "owndata:load", *words, ok=False)
    assert answer.exit_code == 2
    assert "owndata:load has no validation part" in answer.stderr
    answer = project("curve", "--dataset", "owndata:load", "--validation", "mnist", ok=False)
    assert "--validation: expected only with --calibrate" in answer.stderr


def test_a_network_of_ones_own_is_trained(project, type_command):
    words = ("--recipe", "mnist-compact-standard", "--images", "owndata:load", "--epochs", "1")
    answer = type_command("train", *words, "--network", "ownnet:Linear", "--out", "trained")
    assert answer.exit_code == 0, answer.output
    assert "curve local:trained --network ownnet:Linear" in answer.stdout
    answer = type_command("curve", "local:trained", "--dataset", "mnist", *_QUICK)
    assert "pass network='ownnet:Linear' (--network)" in answer.stderr


def test_a_wrong_image_size_is_one_line(project):
    np.savez("small.npz", images=np.zeros((2, 20, 20), np.uint8), labels=np.zeros(2, int))
    answer = project("curve", "--dataset", "small.npz", *_QUICK, ok=False)
    assert answer.exit_code == 1
    assert "error: the network fails on inputs of shape (2, 1, 20, 20): " in answer.stderr


def test_a_network_that_ends_in_a_softmax_is_warned_of(project, tmp_path):
    text = _MODULES["ownnet"].replace("x.flatten(1))", "x.flatten(1)).softmax(1)")
    (tmp_path / "ownsoft.py").write_text(text)
    words = ("--network", "ownsoft:Linear", "--dataset", "mnist", "--num", "3", "--rule", "none")
    answer = project("curve", *words, *_QUICK)
    assert "look like softmax probabilities" in answer.stderr
    assert any("softmax" in note for note in load_result("here").provenance.notes)
