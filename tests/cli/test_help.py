"""Every command says what it does, with an example, at once and without torch."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys

import pytest

import cpr_wrap
from cpr_wrap.cli import _COMMANDS

_SHARED = ("--device", "--json", "--debug")


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_has_an_example_and_the_shared_options(name, type_command):
    answer = type_command(name, "--help")
    assert answer.exit_code == 0
    assert f"Example: cpr-wrap {name}" in answer.output
    for option in _SHARED:
        assert option in answer.output


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_options_of_the_example_exist(name, type_command):
    output = type_command(name, "--help").output
    example = _COMMANDS[name][1].__doc__.partition("Example:")[2]
    options = [word for word in example.split() if word.startswith("-")]
    declared = output[output.index("Options") :]
    assert [option for option in options if option not in declared] == []


def test_the_program_lists_its_commands_in_order(type_command):
    answer = type_command("--help")
    assert "Example: cpr-wrap demo" in answer.output
    places = [answer.output.index(f" {name} ") for name in _COMMANDS]
    assert places == sorted(places)


def test_no_command_is_a_usage_error_that_shows_the_help(type_command):
    answer = type_command()
    assert answer.exit_code == 2
    assert "Usage: cpr-wrap" in answer.output


def test_version(type_command):
    assert type_command("--version").output == f"cpr-wrap {cpr_wrap.__version__}\n"


def test_help_is_quick_and_imports_no_torch():
    program = (
        "import sys; from cpr_wrap.cli import app; sys.argv = ['cpr-wrap', 'curve', '--help']\n"
        "try: app()\n"
        "finally: print('torch' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr == "False False\n"
    assert "Usage: cpr-wrap curve" in done.stdout
    # The processor's time, not the wall's: other work on this machine is not our fault.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_python_m_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "cpr_wrap", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"cpr-wrap {cpr_wrap.__version__}\n"


_TINY = ("--budget", "tests.budgets:Dark")
# What keeps an example small, or stands for what it reads.
_CHEAPER = {
    "calibrate": ("--num", "10", "--steps", "2"),
    "list": ("--source", "bundled"),
    "curve": ("--num", "2", *_TINY),
    "attack": ("--num", "2", "--iterations", "2"),
    "train": ("--epochs", "1", "--images", "few.npz", "--validation", "few.npz"),
    "bench": ("--num", "1", "--batch-size", "2", *_TINY),
    "certify": ("--num", "2", "--no-crown"),
    "advise": (
        *("--num", "2", "--radii", "0.1", "--try-steps", "2", "--thresholds", "0.6"),
        *(*_TINY, "--screening", _TINY[1]),
    ),
    "sweep": ("--num", "1"),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", [name for name in _COMMANDS if name != "demo"])  # test_demo.py
def test_the_example_runs(name, type_command, result, tmp_path):
    import numpy as np
    from PIL import Image

    example = _COMMANDS[name][1].__doc__.partition("Example: cpr-wrap ")[2]
    words = example.split("\n\n")[0].split()
    for word in words:
        if word.startswith("runs/") and "--out" not in words[: words.index(word)][-1:]:
            shutil.copytree(result, tmp_path / word)
    (tmp_path / "digits").mkdir()
    Image.new("L", (28, 28), 99).save(tmp_path / "digits" / "1.png")
    np.savez("few.npz", images=np.zeros((20, 28, 28), np.uint8), labels=np.arange(20) % 10)
    answer = type_command(*words, *_CHEAPER.get(name, ()))
    assert answer.exit_code == 0, answer.output
