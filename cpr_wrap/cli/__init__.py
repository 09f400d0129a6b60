"""The program `cpr-wrap`: each command parses, calls the library, and prints.

Nothing here imports torch before a command runs: `cpr-wrap --help` answers at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from cpr_wrap.cli import advise, attack, curve, demo, listing, predict, results, sweep, train
from cpr_wrap.cli._run import Program, reported
from cpr_wrap.cli.options import flattened

__all__ = ["app", "main"]

# In the order in which `cpr-wrap --help` shows them.
_COMMANDS: dict[str, tuple[str, Callable[..., None]]] = {
    "demo": ("Start here", demo.demo),
    "list": ("Start here", listing.list_names),
    "curve": ("Evaluate", curve.curve),
    "sweep": ("Evaluate", sweep.sweep),
    "certify": ("Evaluate", attack.certify),
    "attack": ("Evaluate", attack.attack),
    "merge": ("Evaluate", results.merge),
    "verify": ("Evaluate", results.verify),
    "advise": ("Make and use models", advise.advise),
    "calibrate": ("Make and use models", advise.calibrate),
    "train": ("Make and use models", train.train),
    "predict": ("Make and use models", predict.predict),
    "report": ("Show", results.report),
    "compare": ("Show", results.compare),
    "bench": ("Show", attack.bench),
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


def _help(function: Callable[..., None]) -> str:
    """A command's docstring with each paragraph on one line, for the terminal to break."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for _name, (_panel, _function) in _COMMANDS.items():
    app.command(_name, help=_help(_function), rich_help_panel=_panel)(
        reported(flattened(_function))
    )


def main() -> None:
    """Run the command line."""
    app(prog_name="cpr-wrap")
