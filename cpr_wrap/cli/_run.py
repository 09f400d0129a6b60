"""How every command ends: with its result, or with one line that says why not."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer

_INTERRUPTED = 130  # what a shell reports after Ctrl-C


def reported(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command's errors and warnings come out as lines on standard error.

    Args:
        function: A command with the option `debug`, which asks for the traceback.
    """

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        with _warnings_as_lines():
            try:
                function(*args, **options)
            except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
                raise  # Typer knows what to do with these
            except KeyboardInterrupt:
                say("stopped")
                raise typer.Exit(_INTERRUPTED) from None
            except Exception as error:
                if options.get("debug"):
                    raise
                say(f"error: {_one_line(error)}")
                raise typer.Exit(1) from None

    return run


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """Inside, Ctrl-C says what is kept and how to go on.

    Args:
        kept: What is kept, as the beginning of a sentence.
    """
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {kept}. To go on, run the same command again: {command_line()}")
        raise typer.Exit(_INTERRUPTED) from None


def command_line() -> str:
    """What was typed, ready to be typed again."""
    return shlex.join(["cpr-wrap", *sys.argv[1:]])


def say(text: str) -> None:
    """Print a line on standard error; where there are several processes, say which one speaks."""
    rank = os.environ.get("RANK", "0")
    typer.echo(text if rank == "0" else f"[process {rank}] {text}", err=True)


def mention(text: str) -> None:
    """Print a line that all processes would print alike, once."""
    if os.environ.get("RANK", "0") == "0":
        say(text)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(
        error, ValueError | TypeError | LookupError | RuntimeError | OSError | ImportError
    ):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text} (--debug shows where)"


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,  # noqa: ARG001
        lineno: int,  # noqa: ARG001
        file: TextIO | None = None,  # noqa: ARG001
        line: str | None = None,  # noqa: ARG001
    ) -> None:
        if issubclass(category, UserWarning):
            mention(f"warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
