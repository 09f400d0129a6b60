"""The options that commands share, each declared once."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

MODEL, IMAGES, GENERAL = "Model and rule", "Images", "General"
"""The headings that `--help` puts options under."""


def fraction(text: str | float) -> float:
    """Read a number of at least 0, like `0.3` or `8/255`.

    Example:
        >>> fraction("51/255")
        0.2
    """
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


def option(text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option without a default to show.

    Args:
        text: What it is for.
        *names: Its names, where the parameter's own is not meant.
        panel: The heading it stands under.
        **more: Passed on to `typer.Option`.
    """
    return typer.Option(*names, help=text, show_default=False, rich_help_panel=panel, **more)


def number(text: str, *names: str, panel: str | None = None) -> Any:
    """An option that takes `0.03` or `8/255`."""
    return option(text, *names, panel=panel, parser=fraction, metavar="NUMBER")


def whole_numbers(text: str) -> list[int]:
    """Read a list like `3,8,20-29`; a range has both its ends.

    Example:
        >>> whole_numbers("3, 8-10")
        [3, 8, 9, 10]
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        whole = first.isdecimal() and (last.isdecimal() or not dash)
        if not whole or (dash and int(last) < int(first)):
            raise typer.BadParameter(f"expected whole numbers like 3,8,20-29, got {text!r}")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


class DeviceName(str, enum.Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


Address = Annotated[
    str,
    typer.Argument(
        help="bundled:NAME, robustbench:NAME, timm:NAME, hf-hub:OWNER/NAME or local:PATH.",
        metavar="ADDRESS",
        show_default=False,
    ),
]
Eps = Annotated[
    float | None,
    number("Perturbation budget in pixel units, e.g. 8/255; by default the model's own."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random starts.")]
BatchSize = Annotated[int | None, option("Batch size; by default what fits into memory.", min=1)]
BudgetName = Annotated[
    str, typer.Option(help="Budget of attacks: see `cpr-wrap list budgets`, or module:name.")
]
Validation = Annotated[
    str | None, option("Images for calibration; by default the validation part of the data set.")
]
Overwrite = Annotated[bool, option("Overwrite existing files.", "--overwrite")]


ModelDir = Annotated[Path | None, option("Folder of downloaded weights.", panel=MODEL)]
NetworkName = Annotated[
    str | None,
    option("Architecture of local:FILE: a name like lenet, or module:Class.", panel=MODEL),
]
DataDir = Annotated[
    Path | None,
    option("Folder of the data sets; by default $CPR_WRAP_DATA, else data.", panel=IMAGES),
]
Download = Annotated[bool, option("Download what is missing.", "--download", panel=IMAGES)]


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    device: Annotated[
        DeviceName,
        typer.Option(help="Device; auto uses a GPU if there is one.", rich_help_panel=GENERAL),
    ] = DeviceName.auto
    imports: Annotated[
        list[str] | None,
        option(
            "Import this module first, for what it registers; repeatable.",
            "--import",
            panel=GENERAL,
            metavar="MODULE",
        ),
    ] = None
    as_json: Annotated[bool, option("Print JSON.", "--json", panel=GENERAL)] = False
    debug: Annotated[bool, option("Show an error's traceback.", "--debug", panel=GENERAL)] = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How to load a model, and when it rejects."""

    rule: Annotated[
        str | None,
        option(
            "cpr, confidence, rcd, atrr, verified, none, a plug-in's or module:Class; by default "
            "the model's own.",
            panel=MODEL,
        ),
    ] = None
    radius: Annotated[
        float | None, number("Consistency radius of cpr, e.g. 0.1 or 2/255.", panel=MODEL)
    ] = None
    steps: Annotated[int | None, option("Steps of cpr's T(x).", panel=MODEL, min=1)] = None
    step_size: Annotated[float | None, number("Step size of T(x).", panel=MODEL)] = None
    threshold: Annotated[
        float | None, option("Accept inputs whose score reaches this.", panel=MODEL)
    ] = None
    settings: Annotated[
        list[str] | None,
        option("Any setting of the rule; repeatable.", "--set", panel=MODEL, metavar="NAME=VALUE"),
    ] = None
    norm: Annotated[
        str | None,
        option(
            "Linf or L2, of cpr's ball and of attacks; by default the model's own.", panel=MODEL
        ),
    ] = None
    model_dir: ModelDir = None
    network: NetworkName = None


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which images."""

    dataset: Annotated[
        str | None,
        option(
            "mnist, svhn, cifar10, an image folder, a .npz file or module:function; by default "
            "the model's own.",
            panel=IMAGES,
        ),
    ] = None
    # torchrun takes "--num" for the beginning of two options of its own, wherever it stands, on
    # Python 3.11; "-n" it leaves alone.
    num: Annotated[
        int | None, option("Use at most this many images.", "--num", "-n", panel=IMAGES, min=1)
    ] = None
    start: Annotated[
        int | None, option("Number of the first image to use.", panel=IMAGES, min=0)
    ] = None
    indices: Annotated[
        Any,  # a list of numbers, once it is parsed
        option(
            "Use the images with these numbers, e.g. 3,8,20-29.",
            panel=IMAGES,
            parser=whole_numbers,
            metavar="NUMBERS",
        ),
    ] = None
    class_map: Annotated[
        Path | None,
        option("For an image folder: a file with the number of each class folder.", panel=IMAGES),
    ] = None
    data_dir: DataDir = None
    download: Download = False
