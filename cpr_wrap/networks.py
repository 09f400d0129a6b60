"""The networks of the recipes, from pixels in [0, 1] to one row of outputs per image.

None of them normalizes or clips its input: eps stays in pixel units, and clipping would introduce
the gradient of clamp, which is zero on its bounds.

Every factory takes `num_outputs`, the number of output columns, and `auxiliary`: if set, the last
column comes from ATRR's auxiliary head, a small network on the shared features.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cpr_wrap._registry import Registry

NETWORKS: Registry[Callable[..., nn.Module]] = Registry("network")


def build_network(name: str, *, seed: int = 0, **settings: Any) -> nn.Module:
    """Build a registered network with weights that depend on the seed alone.

    Args:
        name: A name in `NETWORKS`, e.g. `lenet-compact`.
        seed: Seed of the initial weights; the caller's random state is not changed.
        **settings: Passed on to the factory: `num_outputs`, `in_channels`, `auxiliary`, ...

    Example:
        >>> import torch
        >>> network = build_network("lenet-compact", num_outputs=10)
        >>> network(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    factory = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory(**settings)


def network_settings(
    name: str, shape: tuple[int, ...], num_outputs: int, *, auxiliary: bool = False
) -> dict[str, Any]:
    """Settings of a registered network for images of a given shape.

    Args:
        name: A name in `NETWORKS`.
        shape: `(C, H, W)`.
        num_outputs: Number of output columns.
        auxiliary: Whether the last column comes from an auxiliary head.

    Example:
        >>> network_settings("resnet20", (3, 32, 32), num_outputs=10)["in_channels"]
        3
    """
    settings = {"num_outputs": num_outputs, "in_channels": shape[0], "auxiliary": auxiliary}
    # Networks that average over all pixels take any size and do not ask for it.
    if "image_size" in inspect.signature(NETWORKS[name]).parameters:
        settings["image_size"] = shape[1]
    return settings


class TwoHeads(nn.Module):
    """Class logits and, as one more column, the logit of an auxiliary head on the same features."""

    def __init__(self, trunk: nn.Module, head: nn.Module, auxiliary: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head, self.auxiliary = trunk, head, auxiliary

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `(N, k + 1)` of images `(N, C, H, W)`, the auxiliary logit last."""
        features = self.trunk(x)
        return torch.cat([self.head(features), self.auxiliary(features)], dim=1)


def _with_heads(trunk: nn.Sequential, head: nn.Linear, auxiliary: bool) -> nn.Module:
    """Put the class head, and ATRR's auxiliary head if asked for, on a trunk."""
    if not auxiliary:
        return nn.Sequential(*trunk, head)
    hidden = 256
    confidence = nn.Sequential(
        nn.Linear(head.in_features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )
    return TwoHeads(trunk, head, confidence)


def _check_outputs(num_outputs: int, auxiliary: bool) -> int:
    """Columns left for the class head."""
    columns = num_outputs - int(auxiliary)
    if columns < 2:
        more = " and the auxiliary column" if auxiliary else ""
        raise ValueError(f"num_outputs: expected at least two classes{more}, got {num_outputs}")
    return columns


def _halving_twice(
    maps: list[nn.Module],
    sizes: tuple[int, int],
    num_outputs: int,
    image_size: int,
    auxiliary: bool,
) -> nn.Module:
    """Put hidden units and heads on layers of maps; `sizes` are the channels and the units."""
    columns = _check_outputs(num_outputs, auxiliary)
    if image_size % 4:
        raise ValueError(
            f"image_size: expected a multiple of 4 (two layers halve it), got {image_size}"
        )
    channels, hidden = sizes
    units = nn.Linear(channels * (image_size // 4) ** 2, hidden)
    trunk = nn.Sequential(*maps, nn.Flatten(), units, nn.ReLU())
    return _with_heads(trunk, nn.Linear(hidden, columns), auxiliary)


def _pooled(inputs: int, first: int, second: int) -> list[nn.Module]:
    # Pooling before the ReLU gives the same values as after it, on a quarter of the pixels.
    return [
        nn.Conv2d(inputs, first, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
    ]


@NETWORKS.register("lenet")
def lenet(
    *, num_outputs: int = 10, in_channels: int = 1, image_size: int = 28, auxiliary: bool = False
) -> nn.Module:
    """Build the paper's LeNet for MNIST: 32 and 64 channels, 1024 hidden units, 3.3 M weights."""
    maps = _pooled(in_channels, 32, 64)
    return _halving_twice(maps, (64, 1024), num_outputs, image_size, auxiliary)


@NETWORKS.register("lenet-compact")
def lenet_compact(
    *, num_outputs: int = 10, in_channels: int = 1, image_size: int = 28, auxiliary: bool = False
) -> nn.Module:
    """Build a LeNet that trains on a CPU: 16 and 32 channels, 256 hidden units, 0.4 M weights."""
    maps = _pooled(in_channels, 16, 32)
    return _halving_twice(maps, (32, 256), num_outputs, image_size, auxiliary)


@NETWORKS.register("strided-compact")
def strided_compact(
    *, num_outputs: int = 10, in_channels: int = 1, image_size: int = 28, auxiliary: bool = False
) -> nn.Module:
    """Build two strided convolutions without pooling, for tight bounds: 0.4 M weights."""
    first = nn.Conv2d(in_channels, 32, 5, stride=2, padding=2)
    second = nn.Conv2d(32, 64, 4, stride=2, padding=1)
    maps = [first, nn.ReLU(), second, nn.ReLU()]
    return _halving_twice(maps, (64, 128), num_outputs, image_size, auxiliary)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Features `(N, outputs, H / stride, W / stride)`."""
        features: Tensor = self.residual(x) + self.shortcut(x)
        return features.relu()


def _resnet20(base: int, num_outputs: int, in_channels: int, auxiliary: bool) -> nn.Module:
    columns = _check_outputs(num_outputs, auxiliary)
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, base, 3, padding=1, bias=False),
        nn.BatchNorm2d(base),
        nn.ReLU(inplace=True),
    ]
    width = base
    for stage in range(3):
        for block in range(3):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(width, base * 2**stage, stride))
            width = base * 2**stage
    trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Linear(width, columns)
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    # The published networks pass the gain of a ReLU where the slope of a leaky one is expected;
    # it makes the last layer start smaller by a factor of sqrt(3).
    nn.init.kaiming_normal_(head.weight, a=2**0.5)
    nn.init.zeros_(head.bias)
    return _with_heads(trunk, head, auxiliary)


@NETWORKS.register("resnet20")
def resnet20(*, num_outputs: int = 10, in_channels: int = 3, auxiliary: bool = False) -> nn.Module:
    """Build the usual ResNet-20 for 32x32 images: 16, 32, 64 channels, 0.27 M weights."""
    return _resnet20(16, num_outputs, in_channels, auxiliary)


@NETWORKS.register("resnet20-wide")
def resnet20_wide(
    *, num_outputs: int = 10, in_channels: int = 3, auxiliary: bool = False
) -> nn.Module:
    """Build what the paper calls ResNet-20: 64, 128, 256 channels, 4.3 M weights."""
    return _resnet20(64, num_outputs, in_channels, auxiliary)
