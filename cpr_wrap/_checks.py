"""What we accept from users. Each check says what was expected, what came, and what to do."""

from __future__ import annotations

import importlib
import math
from numbers import Integral, Real
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

# Values this far outside [0, 1] are rounding; anything more is a different pixel scale.
_PIXEL_SLACK = 1e-5


def check_images(x: Tensor, name: str = "x") -> None:
    """Refuse anything but a non-empty float batch `(N, ...)` of finite pixels in [0, 1]."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor of images, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(
            f"{name}: expected floating point pixels in [0, 1], got {x.dtype}; "
            "convert with x.float() / 255 if these are bytes"
        )
    if x.dim() < 2:
        raise ValueError(
            f"{name}: expected a batch (N, ...) of images, got shape {tuple(x.shape)}; "
            "add a batch dimension with x[None]"
        )
    if x.numel() == 0:
        raise ValueError(f"{name}: expected at least one image, got shape {tuple(x.shape)}")
    low, high = x.detach().aminmax()
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise ValueError(f"{name}: expected finite pixels, got NaN or infinity")
    if low < -_PIXEL_SLACK or high > 1 + _PIXEL_SLACK:
        raise ValueError(
            f"{name}: expected pixels in [0, 1], got [{low:.4g}, {high:.4g}]. If the images are "
            "normalized already, move mean and std into the network with cpr_wrap.Normalize"
        )


def check_labels(y: Tensor, count: int, num_classes: int | None = None, name: str = "y") -> None:
    """Refuse anything but `count` integer labels in `range(num_classes)`."""
    if not isinstance(y, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor of labels, got {type(y).__name__}")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"{name}: expected integer labels, got {y.dtype}")
    if y.dim() != 1 or len(y) != count:
        raise ValueError(
            f"{name}: expected one label for each of the {count} images, shape ({count},), "
            f"got shape {tuple(y.shape)}"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        top = "" if num_classes is None else f" to {num_classes - 1}"
        raise ValueError(f"{name}: expected labels from 0{top}, got labels from {low} to {high}")


def check_positive(value: float, name: str) -> None:
    """Refuse anything but a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number, got {value!r:.60}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number above 0, got {value}")


def check_count(value: int, name: str) -> None:
    """Refuse what is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")


def check_number(value: float, name: str) -> float:
    """A finite number above zero, also given as a tensor or array of one number."""
    if isinstance(value, bool) or (hasattr(value, "dtype") and "bool" in str(value.dtype)):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected a number, got {value!r:.60}") from error
    check_positive(number, name)
    return number


def check_seed(seed: int) -> int:
    """A whole number from 0 up to 2 ** 63 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected a whole number from 0 to 2**63 - 1, got {seed!r}")
    return int(seed)


def check_eps(eps: float, name: str = "eps") -> None:
    """Refuse a budget that is negative or not finite."""
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"{name}: expected a finite number of at least 0, got {eps}")


def check_share(value: float, name: str) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name}: expected a number between 0 and 1, got {value}")


def check_eval_mode(network: nn.Module) -> None:
    """Refuse a network in training mode: dropout and batch statistics make answers random."""
    for name, module in network.named_modules():
        if module.training:
            where = f"its submodule {name!r}" if name else "it"
            raise ValueError(
                f"expected a network in eval mode, but {where} is in training mode; "
                "call .eval() first"
            )


def import_extra(module: str, extra: str | None = None) -> ModuleType:
    """Import an optional package, or say how to get it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] != package:
            raise  # the package is there; something inside it is missing
        what = f"'cpr-wrap[{extra}]'" if extra else package
        raise ModuleNotFoundError(f"{package} is not installed; pip install {what}") from error


def data_frame(rows: Any) -> Any:
    """Rows of plain values as a pandas DataFrame."""
    return import_extra("pandas", "pandas").DataFrame(rows)
