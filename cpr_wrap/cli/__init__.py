"""The program `cpr-wrap`: each command parses, calls the library, and prints.

Nothing here imports torch before a command runs: `cpr-wrap --help` answers at once.
"""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from cpr_wrap.cli import commands
from cpr_wrap.cli._run import Program, reported
from cpr_wrap.cli.options import spread

__all__ = ["app", "main"]

# In the order in which `cpr-wrap --help` shows them, each with the function that does the work.
_COMMANDS: dict[str, tuple[str, type[Any], str]] = {
    "demo": ("Start here", commands.Demo, "demo:demo"),
    "list": ("Start here", commands.ListNames, "listing:list_names"),
    "curve": ("Evaluate", commands.Curve, "curve:curve"),
    "sweep": ("Evaluate", commands.Sweep, "sweep:sweep"),
    "certify": ("Evaluate", commands.Certify, "attack:certify"),
    "attack": ("Evaluate", commands.Attack, "attack:attack"),
    "merge": ("Evaluate", commands.Merge, "results:merge"),
    "verify": ("Evaluate", commands.Verify, "results:verify"),
    "advise": ("Make and use models", commands.Advise, "advise:advise"),
    "calibrate": ("Make and use models", commands.Calibrate, "advise:calibrate"),
    "train": ("Make and use models", commands.Train, "train:train"),
    "predict": ("Make and use models", commands.Predict, "predict:predict"),
    "report": ("Show", commands.Report, "results:report"),
    "compare": ("Show", commands.Compare, "results:compare"),
    "bench": ("Show", commands.Bench, "attack:bench"),
}

app = typer.Typer(
    name="cpr-wrap",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from cpr_wrap import __version__

        typer.echo(f"cpr-wrap {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a check failed (verify, attack, "
    "curve --audit), 130 stopped by Ctrl-C, 143 by SIGTERM."
)
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What does it cost when your classifier may say "I don't know", and someone attacks it?

    Example: cpr-wrap demo
    """


def _add(name: str, panel: str, command: type[Any], address: str) -> None:
    def work(options: Any) -> None:
        resolve_name(f"cpr_wrap.cli.{address}")(options)

    # Each paragraph on one line, for the terminal to break.
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, help=text, rich_help_panel=panel)(reported(spread(command, work)))


for _name, _facts in _COMMANDS.items():
    _add(_name, *_facts)


def main() -> None:
    """Run the command line."""
    app(prog_name="cpr-wrap")
