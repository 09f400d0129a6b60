"""A package of somebody else's: from pip to Python and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cpr_wrap._registry import Registry
from cpr_wrap.rules import RULES
from tests import processes

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package of tests/plugin/, installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--target", str(folder), str(_copied(folder))]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def _copied(folder: Path) -> Path:
    """A copy of the package's source, for pip builds inside it."""
    import shutil

    source = folder.parent / f"{folder.name}-source"
    shutil.copytree(ROOT / "tests" / "plugin", source)
    return source


def run(installed: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT)])
    return processes.run(*words, cwd=tmp_path, env={"PYTHONPATH": path})


SCRIPT = """
import warnings
import torch
import cpr_wrap
from cpr_wrap.testing import check_rule

warnings.simplefilter("error", UserWarning)

data = cpr_wrap.load_data("mnist", "robust", num=3)
network = cpr_wrap.load_network("twins:at").network
second = cpr_wrap.load_network("bundled:mnist-compact-trades").network
entropy = cpr_wrap.RULES["entropy"](threshold=-0.5)
agreement = cpr_wrap.RULES["ensemble"](threshold=-0.2, second=second)
for rule in (entropy, agreement):
    check_rule(rule, network, data.images)
model = cpr_wrap.SelectiveClassifier(network, agreement)
curve = cpr_wrap.robustness_curve(model, data.images, data.labels, 0.3, budget="fog-only")
assert [stage.attack for stage in curve.passes] == ["preflight", "clean", "fog"]
assert curve.settings.rule.address == "cpr_wrap_example.rules:Agreement"
assert curve.settings.rule.forwards == 2
assert cpr_wrap.save_result(curve, "run") and cpr_wrap.verify_result("run", model).holds
model.save("saved")
again = cpr_wrap.load("local:saved", network=network)
assert torch.equal(again(data.images).score, model(data.images).score)
squares = cpr_wrap.load_data("squares", "robust", num=3)
assert (squares.name, len(squares)) == ("squares", 3)
print("done")
"""


def test_everything_works_from_python(installed, tmp_path):
    answer = run(installed, tmp_path, "-c", SCRIPT)
    assert answer.stdout == "done\n", answer.stderr


COMMANDS = """
import json, sys
from typer.testing import CliRunner
from cpr_wrap.cli import app

for words in json.loads(sys.argv[1]):
    answer = CliRunner().invoke(app, words.split())
    print(json.dumps([answer.exit_code, answer.stdout, answer.stderr]))
"""


def test_the_command_line_knows_it(installed, tmp_path):
    model = "bundled:mnist-compact-at"
    commands = (
        "list --json",
        "curve twins:at --rule entropy --set threshold=-0.5 -n 2 --budget fog-only --out run",
        "verify run",
        f"attack {model} fog -n 2 --rule entropy --json",
        f"calibrate {model} --rule entropy -n 50 --json",
    )
    done = run(installed, tmp_path, "-c", COMMANDS, json.dumps(commands))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, *_ in answers] == [0] * 5, (answers, done.stderr)
    listed, _, _, attack, calibrated = (text for _, text, _ in answers)
    names = json.loads(listed)
    assert {"entropy", "ensemble"} <= set(names["rules"])
    assert {"fog", "HEIA"} <= set(names["attacks"])
    assert "fog-only" in names["budgets"]
    assert "twins" in names["sources"]
    assert "squares" in names["datasets"]
    made = json.loads((tmp_path / "run" / "result.json").read_text())
    assert made["settings"]["rule"]["settings"] == {"threshold": -0.5}
    assert json.loads(attack)["attack"] == "fog"
    assert json.loads(calibrated)["after"]["name"] == "entropy"


class _Point:
    """An entry point that cannot be loaded."""

    name = "broken"

    class dist:
        name = "somebody-else"

    def load(self):
        raise ImportError("no module named 'missing'")


def test_a_plug_in_that_fails_is_named_and_the_rest_works(monkeypatch):
    asked = []

    def entry_points(group):
        asked.append(group)
        return [_Point()]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    things: Registry[int] = Registry("thing", "cpr_wrap.things")
    things.register("own")(1)
    assert things["own"] == 1
    assert asked == []  # nothing is imported for a name that is known
    text = "thing 'broken' of somebody-else could not be loaded: ImportError: no module named"
    with pytest.warns(UserWarning, match=text):
        assert list(things) == ["own"]
    with pytest.raises(LookupError, match=r"unknown thing .broken.\. Known: own"):
        things["broken"]
    assert asked == ["cpr_wrap.things"]


def test_a_plug_in_that_leaves_the_program_is_named_too(monkeypatch):
    class Leaving(_Point):
        def load(self):
            sys.exit(3)

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Leaving()])
    things: Registry[int] = Registry("thing", "cpr_wrap.things")
    with pytest.warns(UserWarning, match="of somebody-else could not be loaded: SystemExit: 3"):
        assert list(things) == []


def test_a_plug_in_under_a_name_that_is_taken_is_named(monkeypatch):
    class Taking(_Point):
        name = "own"

        def load(self):
            return 2

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Taking()])
    things: Registry[int] = Registry("thing", "cpr_wrap.things")
    things.register("own")(1)
    with pytest.warns(UserWarning, match="thing 'own' is registered already"):
        assert list(things) == ["own"]
    assert things["own"] == 1


def test_only_rules_enter_as_rules():
    rules: Registry[object] = Registry("rule", "cpr_wrap.none", RULES._adopt)
    with pytest.raises(TypeError, match="five: expected a class of RejectionRule, got 5"):
        rules._adopt("five", 5)


NETWORKS = """
import cpr_wrap

second = cpr_wrap.load_network("bundled:mnist-compact-trades").network
model = cpr_wrap.load("twins:at", "ensemble", threshold=-0.2, second=second)
assert model.companions["second"] is second
model.save("ensemble")
assert cpr_wrap.load("local:ensemble", "ensemble", threshold=-0.1).rule.threshold == -0.1
try:
    cpr_wrap.load("twins:at", "ensemble")
except ValueError as error:
    print(error)
"""


def test_a_second_network_is_given_and_never_made_up(installed, tmp_path):
    answer = run(installed, tmp_path, "-c", NETWORKS)
    text = "rule 'ensemble' has networks of its own, second, whose weights are not known here"
    assert answer.stdout.startswith(text), answer.stderr
    commands = (
        "curve local:ensemble -n 2 --eps 0.3 --dataset mnist --budget fog-only --out run",
        "verify run",
        "attack local:ensemble fog -n 2 --eps 0.3 --dataset mnist --rule ensemble --json",
    )
    done = run(installed, tmp_path, "-c", COMMANDS, json.dumps(commands))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, *_ in answers] == [0] * 3, (answers, done.stderr)
    other = run(installed, tmp_path, "-m", "cpr_wrap", "verify", "run", "--model", "twins:at")
    assert "and twins:at was saved without them" in other.stderr
