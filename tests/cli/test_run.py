"""How commands end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cpr_wrap.cli._run import command_line, mention, reported, resumable, say


def _ending(work, *words):
    """What comes of a command that does some work."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    @reported
    def command(
        *,
        debug: bool = False,
        as_json: Annotated[bool, typer.Option("--json")] = False,
        imports: Annotated[list[str] | None, typer.Option("--import")] = None,
    ) -> None:
        work()

    return CliRunner().invoke(app, list(words))


def _raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("eps: expected\n  more"), "error: eps: expected more"),
        (LookupError("unknown rule"), "error: unknown rule"),
        (KeyError("eps"), "error: KeyError: 'eps' (--debug shows where)"),
        (RuntimeError("diverged"), "error: diverged"),
        (OSError("disk full"), "error: disk full"),
        (ModuleNotFoundError("pandas is not installed"), "error: pandas is not installed"),
        (TypeError(), "error: TypeError"),
        (ZeroDivisionError("oh"), "error: ZeroDivisionError: oh (--debug shows where)"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(error, line):
    answer = _ending(_raising(error))
    assert answer.exit_code == 1
    assert answer.stderr == line + "\n"
    assert answer.stdout == ""


def test_debug_shows_the_traceback():
    error = ValueError("deep down")
    answer = _ending(_raising(error), "--debug")
    assert answer.exception is error
    assert answer.stderr == ""


def test_typers_own_endings_pass():
    assert _ending(_raising(typer.Exit(3))).exit_code == 3
    answer = _ending(_raising(typer.BadParameter("no eps")))
    assert answer.exit_code == 2
    assert "no eps" in answer.stderr


def test_interrupted_is_130_and_the_command_is_told(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cpr-wrap", "curve", "local:x"])
    answer = _ending(_raising(KeyboardInterrupt()))
    told = "stopped. To run it again: cpr-wrap curve local:x\n"
    assert (answer.exit_code, answer.stderr) == (130, told)


def test_sigterm_is_143_and_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)

    def work():
        with resumable("finished work is in runs/x"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    answer = _ending(work)
    assert answer.exit_code == 143
    assert answer.stderr.startswith("stopped; finished work is in runs/x. To resume, run the same")
    assert signal.getsignal(signal.SIGTERM) is before


def test_torchruns_processes_die_of_sigterm_at_once(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    heard = []
    _ending(lambda: heard.append(signal.getsignal(signal.SIGTERM)))
    assert heard == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize(
    ("error", "content"),
    [
        (ValueError("no\neps"), {"error": "no eps", "exit_code": 1}),
        (KeyboardInterrupt("stopped"), {"error": "stopped", "exit_code": 130}),
    ],
)
def test_under_json_an_error_is_json(error, content):
    answer = _ending(_raising(error), "--json")
    assert json.loads(answer.stdout) == content
    assert answer.exit_code == content["exit_code"]


def test_modules_are_imported_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imported_first.py").write_text("")
    seen = []
    _ending(lambda: seen.append("imported_first" in sys.modules), "--import", "imported_first")
    assert seen == [True]
    answer = _ending(lambda: None, "--import", "nowhere_at_all")
    assert (answer.exit_code, "unknown module 'nowhere_at_all'" in answer.stderr) == (1, True)


def test_usage_errors_are_json_too(type_command):
    answer = type_command("curve", "local:x", "--eps", "many", "--json")
    assert answer.exit_code == 2
    content = json.loads(answer.stdout)
    assert content["exit_code"] == 2
    assert "expected a number like 0.03 or 8/255, got 'many'" in content["error"]
    assert json.loads(type_command("list", "rules", "--json").stdout)["rules"]


def test_exit_codes_are_told(type_command):
    text = " ".join(type_command("--help").output.split())
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a check failed" in text


def test_interrupted_resumable_work_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/cpr-wrap", "curve", "local:a b", "--num", "3"])

    def work():
        with resumable("finished work is in runs/x"):
            raise KeyboardInterrupt

    answer = _ending(work)
    assert answer.exit_code == 130
    assert answer.stderr == (
        "stopped; finished work is in runs/x. To resume, run the same command again: "
        "cpr-wrap curve 'local:a b' --num 3\n"
    )


def test_warnings_are_lines_and_the_caller_keeps_his_own():
    before = warnings.showwarning

    def work():
        warnings.warn("T(x) cannot\nreach", stacklevel=1)
        warnings.warn("T(x) cannot reach", stacklevel=1)  # said once
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        answer = _ending(work)
    assert answer.stderr == "warning: T(x) cannot reach\n"
    assert warnings.showwarning is before


def test_other_processes_say_who_they_are(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "2")
    say("hello")
    assert capsys.readouterr().err == "[process 2] hello\n"


def test_what_all_would_say_is_said_once(monkeypatch, capsys):
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        mention("hello")
    assert capsys.readouterr().err == "hello\n"


def test_command_line_of_torchrun(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "curve", "local:x"])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert command_line() == "torchrun --nproc-per-node 2 -m -- cpr_wrap curve local:x"
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert command_line().startswith("torchrun --nnodes 3 --nproc-per-node 2 -m -- cpr_wrap")


def test_command_line_can_be_typed_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "list", "--like", "a b"])
    assert command_line() == "cpr-wrap list --like 'a b'"
