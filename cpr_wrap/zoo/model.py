"""A model has an address, `source:name`, and behind it a network on pixels in [0, 1]."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cpr_wrap._registry import Registry
from cpr_wrap._registry import unknown as unknown
from cpr_wrap.selective import RejectionRule


class Normalize(nn.Module):
    """Normalizes images inside the network, so that eps stays in pixel units.

    Args:
        mean: Mean of each channel, of pixels in [0, 1].
        std: Standard deviation of each channel.

    Example:
        >>> import torch
        >>> normalize = Normalize([0.5], [0.25])
        >>> normalize(torch.full((1, 1, 1, 1), 0.75)).item()
        1.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise ValueError(
                f"expected a mean and a std for each channel, got {len(mean)} and {len(std)}"
            )
        if min(std) <= 0:
            raise ValueError(f"std: expected numbers above 0, got {list(std)}")
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalized images `(N, C, H, W)`."""
        return (x - self.mean) / self.std


@dataclass(frozen=True, kw_only=True)
class ZooModel:
    """What a source knows about a model."""

    network: nn.Module  #: Takes pixels `(N, C, H, W)` in [0, 1]; in eval mode.
    address: str  #: Where it came from.
    input_shape: tuple[int, ...] | None = None  #: `(C, H, W)` of its images, if known.
    num_classes: int | None = None  #: Number of classes, if known.
    #: Function from a PIL image to pixels `(C, H, W)` in [0, 1], with the model's own resize and
    #: crop; None if images have the right size already.
    transform: Callable[[Any], Tensor] | None = None
    rule: RejectionRule | None = None  #: The rejection rule it was saved with.
    dataset: str | None = None  #: What it was trained on, if known.
    norm: str | None = None  #: The threat model it was trained or listed for.
    eps: float | None = None  #: The usual budget for that threat model, in pixel units.
    trained_eps: float | None = None  #: The budget it was trained for, if its card says so.
    #: How to build the network again, for `SelectiveClassifier.save`.
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def channels(self) -> int | None:
        """C of its images, from its first convolution if nothing else says; None if unknown."""
        if self.input_shape is not None:
            return self.input_shape[0]
        convolutions = (m for m in self.network.modules() if isinstance(m, nn.Conv2d))
        first = next(convolutions, None)
        return first.in_channels if first is not None and first.in_channels in (1, 3) else None


Network = str | nn.Module | Callable[..., nn.Module]
"""An architecture: a name in `NETWORKS`, `module:name`, a module, or a class or function."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a source, in addition to a name."""

    pretrained: bool = True  #: Whether to load weights, or only to build the network.
    model_dir: Path | None = None  #: Folder of the source's weight files.
    #: The architecture, if the source has only weights, as a name in `NETWORKS`, a class or
    #: function, its address `module:name`, or a module, which is copied.
    network: Network | None = None
    #: Arguments of that class or function, and of timm's `create_model`.
    #: E.g. `{"num_outputs": 10}` for a class, `{"num_classes": 10}` for timm.
    network_settings: Mapping[str, Any] = field(default_factory=dict)
    download: bool = False  #: Whether a model on disk may fetch the description of its base.
    #: The saved folders that led here, each naming the next as its base.
    chain: tuple[Path, ...] = ()


ZOOS: Registry[Callable[[str, Options], ZooModel]] = Registry("model source", "cpr_wrap.zoos")


def parse_address(address: str | os.PathLike[str]) -> tuple[str, str]:
    """Split `source:name`.

    A folder that `SelectiveClassifier.save` wrote may be named without its source, `local`. Any
    other name without a source is refused: we do not guess.

    Example:
        >>> parse_address("robustbench:cifar10/L2/Rice2020Overfitting")
        ('robustbench', 'cifar10/L2/Rice2020Overfitting')
    """
    if isinstance(address, os.PathLike):
        return "local", os.fspath(address)
    if not isinstance(address, str):
        raise TypeError(f"expected an address like 'timm:resnet18', got {address!r}")
    source, colon, name = address.partition(":")
    if not colon and (Path(address) / "config.json").is_file():
        return "local", address
    if not colon:
        raise ValueError(
            f"expected an address like source:name, got {address!r}, which names no source. "
            f"Type {' or '.join(f'{source}:{address}' for source in ZOOS)}"
        )
    _ = ZOOS[source]  # raises with a near miss
    if not name:
        raise ValueError(f"expected a name after {address!r}, e.g. timm:resnet18.a1_in1k")
    return source, name
