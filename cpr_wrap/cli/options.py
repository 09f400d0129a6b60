"""The options that commands share, each declared once.

A command declares an option as `name: type = option("What it is for.")`, and those that several
commands share as the fields of a dataclass, which it takes as one parameter.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

MODEL, IMAGES, GENERAL = "Model and rule", "Images", "General"
"""The headings that `--help` puts options under."""


def option(text: str, *names: str, default: Any = None, **more: Any) -> Any:
    """An option: its help, its names if not the parameter's, and what `typer.Option` takes.

    A default of False makes a flag, without `--no-`.
    """
    return field(default=default, metadata={"names": names, "help": text, **more})


def argument(text: str, default: Any = MISSING, **more: Any) -> Any:
    """An argument: its help, and what `typer.Argument` takes."""
    return field(default=default, metadata={"kind": typer.Argument, "help": text, **more})


def flattened(function: Callable[..., None]) -> Callable[..., None]:
    """Give Typer a function with plain options for one that takes dataclasses of them."""
    hints = get_type_hints(function, include_extras=True)
    parameters: dict[str, inspect.Parameter] = {}
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            types = get_type_hints(hints[name])
            panel = getattr(hints[name], "panel", None)
            for each in fields(hints[name]):
                parameters[each.name] = _parameter(each.name, types[each.name], each, panel)
        elif isinstance(parameter.default, Field):
            parameters[name] = _parameter(name, hints[name], parameter.default)
        else:
            parameters[name] = parameter.replace(annotation=hints[name])

    @functools.wraps(function)
    def run(**values: Any) -> None:
        taken = {
            name: group(**{each.name: values.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        function(**values, **taken)

    # Whoever asks for the signature is not to look through to the function with the groups.
    del run.__dict__["__wrapped__"]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    vars(run)["__signature__"] = inspect.Signature(list(parameters.values()))
    return run


def _parameter(
    name: str, kind: Any, declared: Field[Any], panel: str | None = None
) -> inspect.Parameter:
    """A declared option as Typer reads it."""
    more, default = {"rich_help_panel": panel, **declared.metadata}, declared.default
    names, made = more.pop("names", ()), more.pop("kind", typer.Option)
    if default is False and not names:
        names = (f"--{name.replace('_', '-')}",)
    shown = not (default is None or default is False or default is MISSING)
    info = made(*names, show_default=shown, **more)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind, info],
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


def file_name(name: str) -> str:
    """A run's name as that of its folder."""
    return re.sub(r"[^\w.+=-]", "-", name)


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file that nobody said may go."""
    if path.exists() and not overwrite:
        raise typer.BadParameter(f"{path} exists; choose another file, or pass --overwrite")


def own_code(network: str | None) -> str:
    """The option to type for your own network; empty for one of the package's or a zoo's."""
    from cpr_wrap.zoo import ZOOS

    source, colon, _ = (network or "").partition(":")
    return f" --network {network}" if colon and source not in ZOOS else ""


# What several commands take, each by itself.
address = partial(
    argument,
    "bundled:NAME, robustbench:NAME, timm:NAME, hf-hub:OWNER/NAME or local:PATH.",
    metavar="ADDRESS",
)
required = partial(option, default=MISSING)
number = partial(option, parser=fraction, metavar="NUMBER")
numbers = partial(option, parser=fractions, metavar="NUMBERS")
eps = partial(number, "Perturbation budget in pixel units, e.g. 8/255; by default the model's own.")
seed = partial(option, "Seed of all random starts.", default=0, min=0)
batch_size = partial(option, "Batch size; by default what fits into memory.", min=1)
budget = partial(option, "Budget of attacks: see `cpr-wrap list budgets`, or module:name.")
calibration = partial(number, "Calibrate first: reject this share of correctly classified images.")
validation = partial(
    option, "Images for calibration; by default the validation part of the data set."
)
overwrite = partial(option, "Overwrite existing files.", default=False)
weights_folder = partial(option, "Folder of downloaded weights.", rich_help_panel=MODEL)
architecture = partial(
    option, "Architecture of local:FILE: a name like lenet, or module:Class.", rich_help_panel=MODEL
)
data_folder = partial(option, "Folder of the data sets; by default $CPR_WRAP_DATA, else data.")
may_download = partial(option, "Download what is missing.", default=False)


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    panel = GENERAL
    device: Literal["auto", "cpu", "cuda", "mps"] = option(
        "Device; auto uses a GPU if there is one.", default="auto"
    )
    imports: list[str] | None = option(
        "Import this module first, for what it registers; repeatable.", "--import", metavar="MODULE"
    )
    as_json: bool = option("Print JSON.", "--json", default=False)
    debug: bool = option("Show an error's traceback.", default=False)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How to load a model, and when it rejects."""

    panel = MODEL
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
    model_dir: Path | None = weights_folder()
    network: str | None = architecture()


@dataclass(frozen=True, kw_only=True)
class DataOptions:
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
    data_dir: Path | None = data_folder()
    download: bool = may_download()

    @property
    def chosen(self) -> bool:
        """Whether images are named by their numbers."""
        return self.start is not None or self.indices is not None
