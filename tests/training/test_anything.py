"""Somebody else's network, on somebody's own folder of images, by any method."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from cpr_wrap.data import load_folder
from cpr_wrap.rules import RejectClass
from cpr_wrap.training import METHODS, AdversarialMethod, Recipe, train
from cpr_wrap.zoo import Normalize, load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes: images bright on the left, and bright on the right."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for label, side in (("left", slice(0, 16)), ("right", slice(16, 32))):
        (root / label).mkdir()
        for number in range(6):
            pixels = random.integers(0, 100, (32, 32, 3))
            pixels[:, side] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(root / label / f"{number}.png")
    return root


def timm_network(outputs: int) -> torch.nn.Module:
    network = timm.create_model("test_efficientnet", num_classes=outputs, pretrained=False)
    return torch.nn.Sequential(Normalize([0.5] * 3, [0.25] * 3), network)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["fast-at", "rcd"])
def test_timm_model_on_an_image_folder(folder, tmp_path, name):
    method = METHODS[name](eps=4 / 255)
    assert isinstance(method, AdversarialMethod)
    data = load_folder(folder)
    recipe = Recipe(method=method, epochs=3, batch_size=4, lr=0.02)
    network = timm_network(2 + method.extra_outputs)
    result = train(recipe, data, network=network, out=tmp_path, progress=False)
    assert result.history[-1].loss < result.history[0].loss
    # the folder does not know the class of the network; whoever made it passes it again
    model = load(f"local:{tmp_path}", network=timm_network(2 + method.extra_outputs))
    with torch.no_grad():
        expected = network(data.images)
    close = 1e-5 * float(expected.abs().max())
    assert torch.allclose(model.outputs(data.images), expected, atol=close)
    assert isinstance(model.rule, RejectClass) == (name == "rcd")
