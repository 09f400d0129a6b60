"""How every command ends: with its result, or with one line that says why not.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it failed, e.g. a model, a rule or a file was not found |
| 2 | it was not called as it should be: an unknown option, or a value that one does not take |
| 3 | it ran, and a check failed: `verify`, `attack`, `curve --audit` |
| 130 | stopped by Ctrl-C |
| 143 | stopped by SIGTERM |
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from cpr_wrap.cli.options import Common

FAILED, CHECK_FAILED, INTERRUPTED, TERMINATED = 1, 3, 130, 143
_UsageError: Any = typer.BadParameter.__base__  # click's, or that of typer's own copy of click


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


class Program(TyperGroup):
    """The command line; under `--json` a usage error is JSON too."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run a command and exit."""
        words = sys.argv[1:] if args is None else list(args)
        if "--json" not in words:
            return super().main(words, *rest, **options)
        try:
            code = super().main(words, *rest, **{**options, "standalone_mode": False})
        except _UsageError as error:
            code = error.exit_code
            _tell(error.format_message(), code, as_json=True)
        sys.exit(code)


def reported(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command's errors and warnings come out as lines on standard error.

    Of its options it reads `debug`, `as_json` and `imports`, the modules to import first.
    """

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        as_json = bool(options.get("as_json"))
        _mentioned.clear()
        with _warnings_as_lines(), _stopped_by_sigterm():
            try:
                for module in options.get("imports") or ():
                    from cpr_wrap._registry import import_module

                    import_module(module)
                function(*args, **options)
            except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
                raise  # Typer knows what to do with these
            except KeyboardInterrupt as stop:
                code = TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
                _tell(str(stop) or f"stopped. To run it again: {command_line()}", code, as_json)
                raise typer.Exit(code) from None
            except Exception as error:
                if options.get("debug"):
                    raise
                _tell(_one_line(error), FAILED, as_json, "error: ")
                raise typer.Exit(FAILED) from None

    return run


def _tell(text: str, code: int, as_json: bool, prefix: str = "") -> None:
    say(prefix + text)
    if as_json:
        print_json({"error": text, "exit_code": code})


def print_json(data: Any) -> None:
    """Print data as JSON on standard output; NaN and infinity are null."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(data, inf_nan_mode="null")
    typer.echo(json.dumps(plain, indent=2, allow_nan=False))


def answer(options: Common, data: Any, *lines: str) -> None:
    """Print data as JSON if that is asked for, else the lines."""
    if options.as_json:
        print_json(data)
    else:
        typer.echo("\n".join(lines))


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """Inside, Ctrl-C says what is kept, the beginning of a sentence, and how to resume."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)(
            f"stopped; {kept}. To resume, run the same command again: {command_line()}"
        ) from None


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`.

    Not under torchrun: a process that waits for the others would not hear it, and torchrun ends
    all of them by SIGTERM when one has died.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def command_line() -> str:
    """What was typed, ready to be typed again."""
    program = ["cpr-wrap"]
    here = os.environ.get("LOCAL_WORLD_SIZE")
    if here is not None:  # torchrun's
        program = ["torchrun", "--nproc-per-node", here, "-m", "--", "cpr_wrap"]
        machines = int(os.environ.get("WORLD_SIZE", here)) // int(here)
        if machines > 1:
            program[1:1] = ["--nnodes", str(machines)]
    return shlex.join([*program, *sys.argv[1:]])


def say(text: str) -> None:
    """Print a line on standard error; where there are several processes, say which one speaks."""
    rank = os.environ.get("RANK", "0")
    typer.echo(text if rank == "0" else f"[process {rank}] {text}", err=True)


_mentioned: set[str] = set()  # by this command


def mention(text: str) -> None:
    """Print a line once, though all processes, or several steps of a command, have it to say."""
    if os.environ.get("RANK", "0") == "0" and text not in _mentioned:
        _mentioned.add(text)
        say(text)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    # A KeyError's text is the key alone: it comes from somebody's code, never from a check.
    if not isinstance(error, KeyError) and isinstance(
        error, ValueError | TypeError | LookupError | RuntimeError | OSError | ImportError
    ):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text} (--debug shows where)"


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, UserWarning):
            mention(f"warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
