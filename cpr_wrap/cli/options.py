"""Options as fields of dataclasses: how to declare them, and those that commands share.

A command is a dataclass with a field `name: type = option("What it is for.")` for each option, its
help as the docstring, and what it shares with others as base classes.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

MODEL, IMAGES = "Model and rule", "Images"
"""The headings that `--help` puts options under."""


def option(text: str, *names: str, default: Any = None, **more: Any) -> Any:
    """An option: its help, its names if not the field's, and what `typer.Option` takes.

    A default of False makes a flag, without `--no-`.
    """
    return field(default=default, metadata={"names": names, "help": text, **more})


def argument(text: str, default: Any = MISSING, **more: Any) -> Any:
    """An argument: its help, and what `typer.Argument` takes."""
    declared = {"kind": typer.Argument, "rich_help_panel": None, "help": text, **more}
    return field(default=default, metadata=declared)


def spread(command: type[Any], work: Callable[[Any], None]) -> Callable[..., None]:
    """Give Typer a function with a command's fields as options, for one that takes the command."""
    hints = get_type_hints(command)
    panels = {
        name: vars(kind).get("panel")
        for kind in reversed(command.__mro__)
        for name in inspect.get_annotations(kind)
    }
    parameters = [_parameter(f, hints[f.name], panels[f.name]) for f in fields(command)]

    def run(**values: Any) -> None:
        work(command(**values))

    run.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _parameter(declared: Field[Any], kind: Any, panel: str | None) -> inspect.Parameter:
    """A declared option as Typer reads it."""
    more, default = {"rich_help_panel": panel, **declared.metadata}, declared.default
    names, made = more.pop("names", ()), more.pop("kind", typer.Option)
    if default is False and not names:
        names = (f"--{declared.name.replace('_', '-')}",)
    shown = not (default is None or default is False or default is MISSING)
    return inspect.Parameter(
        declared.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind, made(*names, show_default=shown, **more)],
    )


def fraction(text: str | float) -> float:
    """Read a number of at least 0, like `0.3` or `8/255`."""
    top, slash, bottom = str(text).partition("/")
    try:
        value = float(top) / (float(bottom) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    # Written so that NaN is refused as well.
    if not (math.isfinite(value) and value >= 0):
        raise typer.BadParameter(f"expected a number like 0.03 or 8/255, got {text!r}")
    return value


def fractions(text: str) -> tuple[float, ...]:
    """Read a list like `0,0.05,1` or `0,1/20,1`."""
    return tuple(fraction(part.strip()) for part in text.split(","))


def whole_numbers(text: str) -> list[int]:
    """Read a list like `3,8,20-29`; a range has both its ends."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        whole = first.isdecimal() and (last.isdecimal() or not dash)
        if not whole or (dash and int(last) < int(first)):
            raise typer.BadParameter(f"expected whole numbers like 3,8,20-29, got {text!r}")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def alphas(text: str) -> tuple[float, ...]:
    """Shares of eps, completed with 0 and 1; refused before any work is done."""
    from cpr_wrap.metrics.curve import check_alphas

    try:
        return check_alphas(fractions(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def seconds(text: str) -> float:
    """Read a time like `20ms` or `0.5s`."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(us|ms|s)", str(text).strip())
    if found is None:
        raise typer.BadParameter(f"expected a time like 20ms or 0.5s, got {text!r}")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]


# What several commands take, each by itself.
required = partial(option, default=MISSING)
number = partial(option, parser=fraction, metavar="NUMBER")
numbers = partial(option, parser=fractions, metavar="NUMBERS")
eps = partial(number, "Perturbation budget in pixel units, e.g. 8/255; by default the model's own.")
budget = partial(option, "Budget of attacks: see `cpr-wrap list budgets`, or module:name.")
validation = partial(
    option, "Images for calibration; by default the validation part of the data set."
)
overwrite = partial(option, "Overwrite existing files.", default=False)


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    panel = "General"
    device: Literal["auto", "cpu", "cuda", "mps"] = option(
        "Device; auto uses a GPU if there is one.", default="auto"
    )
    imports: list[str] | None = option(
        "Import this module first, for what it registers; repeatable.", "--import", metavar="MODULE"
    )
    as_json: bool = option("Print JSON.", "--json", default=False)
    debug: bool = option("Show an error's traceback.", default=False)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Where a network comes from, in addition to its address."""

    panel = MODEL
    model_dir: Path | None = option("Folder of downloaded weights.")
    network: str | None = option("Architecture of local:FILE: a name like lenet, or module:Class.")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Weights):
    """How to load a model, and when it rejects."""

    panel = MODEL
    address: str = argument(
        "bundled:NAME, robustbench:NAME, timm:NAME, hf-hub:OWNER/NAME or local:PATH.",
        metavar="ADDRESS",
    )
    rule: str | None = option(
        "cpr, confidence, rcd, atrr, verified, none, a plug-in's or module:Class; by default "
        "the model's own."
    )
    radius: float | None = number("Consistency radius of cpr, e.g. 0.1 or 2/255.")
    steps: int | None = option("Steps of cpr's T(x).", min=1)
    step_size: float | None = number("Step size of T(x).")
    threshold: float | None = option("Accept inputs whose score reaches this.")
    settings: list[str] | None = option(
        "Any setting of the rule; repeatable.", "--set", metavar="NAME=VALUE"
    )
    norm: str | None = option(
        "Linf or L2, of cpr's ball and of attacks; by default the model's own."
    )


@dataclass(frozen=True, kw_only=True)
class DataFolder:
    """Where data sets are."""

    panel = IMAGES
    data_dir: Path | None = option("Folder of the data sets; by default $CPR_WRAP_DATA, else data.")
    download: bool = option("Download what is missing.", default=False)


@dataclass(frozen=True, kw_only=True)
class DataOptions(DataFolder):
    """Which images."""

    panel = IMAGES
    dataset: str | None = option(
        "mnist, svhn, cifar10, an image folder, a .npz file or module:function; by default "
        "the model's own."
    )
    # torchrun takes "--num" for the beginning of two options of its own, wherever it stands, on
    # Python 3.11; "-n" it leaves alone.
    num: int | None = option("Use at most this many images.", "--num", "-n", min=1)
    start: int | None = option("Number of the first image to use.", min=0)
    indices: Any = numbers(
        "Use the images with these numbers, e.g. 3,8,20-29.", parser=whole_numbers
    )
    class_map: Path | None = option(
        "For an image folder: a file with the number of each class folder."
    )

    @property
    def chosen(self) -> bool:
        """Whether images are named by their numbers."""
        return self.start is not None or self.indices is not None


@dataclass(frozen=True, kw_only=True)
class Evaluation(Common, DataOptions, ModelOptions):
    """What to evaluate: a model on images, within a budget."""

    eps: float | None = eps()


@dataclass(frozen=True, kw_only=True)
class Calibrated(Evaluation):
    """An evaluation of a model whose rule may be set before."""

    calibrate: float | None = number(
        "Calibrate first: reject this share of correctly classified images."
    )
    validation: str | None = validation()


@dataclass(frozen=True, kw_only=True)
class Searches:
    """What all runs of attacks take."""

    seed: int = option("Seed of all random starts.", default=0, min=0)
    batch_size: int | None = option("Batch size; by default what fits into memory.", min=1)
