"""The networks and images of the study: those that are here, and what to say of those that are not.

Networks are asked for by address, images by data set and part. A test puts small ones in place.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from pathlib import Path

import torch
from torch import nn

from cpr_wrap.data import ImageData, load_data
from cpr_wrap.rules import AcceptAll
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.zoo import load, load_network

NATURAL = "pyautoattack:resnet18"
"""A CIFAR-10 network of natural training that AutoAttack's package brings along."""


class Materials:
    """Where networks and images come from.

    A `LookupError` says what is not here; stages go on without it.
    """

    def model(self, address: str) -> SelectiveClassifier:
        """A network in a selective classifier; the study puts its own rules on it."""
        if address == NATURAL:
            model = SelectiveClassifier(_natural(), AcceptAll())
        else:
            model = load(address, rule=load_network(address).rule or AcceptAll())
        model.base.to(memory_format=torch.channels_last)  # the faster one on processors
        return model

    def images(self, dataset: str, part: str, num: int | None = None) -> ImageData:
        """The first images of a part; all that there are where there are fewer."""
        data = _images(dataset, part)
        count = len(data) if num is None else min(num, len(data))
        return ImageData(
            images=data.images[:count],
            labels=data.labels[:count],
            indices=data.indices[:count],
            name=dataset,
            part=part,
            num_classes=data.num_classes,
        )


@functools.cache
def _images(dataset: str, part: str) -> ImageData:
    with warnings.catch_warnings():
        # Which images are used is in the results, by their numbers.
        warnings.simplefilter("ignore", UserWarning)
        return load_data(dataset, part)


def _natural() -> nn.Module:
    """AutoAttack's own example: ResNet-18 on pixels in [0, 1], trained without attacks."""
    spec = importlib.util.find_spec("pyautoattack")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    weights = folder / "examples" / "model_test.pt"
    if not weights.exists():
        raise LookupError(
            "pyautoattack's example network is not installed; pip install 'pyautoattack>=0.2'"
        )
    network = importlib.import_module("pyautoattack.examples.resnet").ResNet18()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    for module in network.modules():
        module.training = False
    assert isinstance(network, nn.Module)
    return network
