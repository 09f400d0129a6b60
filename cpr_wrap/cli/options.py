"""The options that commands share, each declared once."""

from __future__ import annotations

import enum
import math
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


class DeviceName(str, enum.Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class NormName(str, enum.Enum):
    """A norm that balls are measured in."""

    Linf = "Linf"
    L2 = "L2"


Address = Annotated[
    str,
    typer.Argument(
        help="bundled:NAME, robustbench:NAME, timm:NAME, hf-hub:OWNER/NAME or local:PATH.",
        metavar="ADDRESS",
        show_default=False,
    ),
]
Eps = Annotated[
    float | None, number("Adversarial budget in pixels, e.g. 8/255; by default the model's own.")
]
Seed = Annotated[int, typer.Option(help="Seed of all random starts.")]
BatchSize = Annotated[int | None, option("Images in a batch; by default what fits.", min=1)]


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes.

    Attributes:
        device: Where to compute.
        as_json: Print JSON on standard output and nothing else.
        debug: Show the traceback of an error.
    """

    device: Annotated[
        DeviceName,
        typer.Option(help="Where to compute; auto takes a GPU if any.", rich_help_panel=GENERAL),
    ] = DeviceName.auto
    as_json: Annotated[bool, option("Print JSON for machines.", "--json", panel=GENERAL)] = False
    debug: Annotated[bool, option("Show an error's traceback.", "--debug", panel=GENERAL)] = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How to load a model, and when it rejects.

    Attributes:
        rule: Name of the rejection rule.
        radius: CPR's radius.
        steps: CPR's number of steps.
        step_size: CPR's step size.
        threshold: Where a score is accepted.
        norm: Norm of CPR's ball, and of the attacks.
        model_dir: Where weight files are.
        network: The architecture, for bare weights.
    """

    rule: Annotated[
        str | None,
        option("cpr, confidence, rcd, atrr or none; by default the model's own.", panel=MODEL),
    ] = None
    radius: Annotated[
        float | None, number("Consistency radius of cpr, e.g. 0.1 or 2/255.", panel=MODEL)
    ] = None
    steps: Annotated[int | None, option("Steps of cpr's T(x).", panel=MODEL, min=1)] = None
    step_size: Annotated[float | None, number("Length of a step of T(x).", panel=MODEL)] = None
    threshold: Annotated[float | None, option("Accept scores from here on.", panel=MODEL)] = None
    norm: Annotated[
        NormName | None,
        option("Norm of cpr's ball and of attacks; by default the model's own.", panel=MODEL),
    ] = None
    model_dir: Annotated[Path | None, option("Where weights are, or go.", panel=MODEL)] = None
    network: Annotated[
        str | None, option("Architecture behind local:FILE, e.g. lenet.", panel=MODEL)
    ] = None


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which images.

    Attributes:
        dataset: Name of a data set, or an image folder.
        num: How many images.
        data_dir: Where data sets are.
        download: Whether to fetch what is missing.
        validation: An image folder to calibrate on.
    """

    dataset: Annotated[
        str | None,
        option(
            "mnist, svhn, cifar10 or an image folder; by default the model's own.", panel=IMAGES
        ),
    ] = None
    # torchrun takes "--num" for the beginning of two options of its own, wherever it stands, on
    # Python 3.11; "-n" it leaves alone.
    num: Annotated[
        int | None, option("Take only so many images.", "--num", "-n", panel=IMAGES, min=1)
    ] = None
    data_dir: Annotated[
        Path | None,
        option("Where data sets are; by default $CPR_WRAP_DATA, else data.", panel=IMAGES),
    ] = None
    download: Annotated[bool, option("Fetch what is missing.", "--download", panel=IMAGES)] = False
    validation: Annotated[
        str | None,
        option("Images to calibrate on, where --dataset is a folder.", panel=IMAGES),
    ] = None
