"""Real weights and real images that come with packages we depend on."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image


def folder_of(package: str) -> Path:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def resnet18():
    """pyautoattack's CIFAR-10 ResNet-18: standard training, 93.7 % clean accuracy."""
    from pyautoattack.examples.resnet import ResNet18

    network = ResNet18()
    weights = folder_of("pyautoattack") / "examples" / "model_test.pt"
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return network.eval()


def foolbox_cifar10():
    """The first 20 CIFAR-10 test images, from the files of foolbox: `(20, 3, 32, 32)`, labels."""
    files = sorted((folder_of("foolbox") / "data").glob("cifar10_*.png"))
    images = np.stack([np.asarray(Image.open(file)) for file in files])
    labels = torch.tensor([int(file.stem.split("_")[2]) for file in files])
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255, labels


def cifar10_test(count: int):
    """The first CIFAR-10 test images from `CPR_WRAP_DATA`, or None where it is not set."""
    file = Path(os.environ.get("CPR_WRAP_DATA", "")) / "cifar10_test.npz"
    if not os.environ.get("CPR_WRAP_DATA") or not file.exists():
        return None
    with np.load(file) as data:
        images, labels = data["images"][:count], data["labels"][:count]
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(labels)
