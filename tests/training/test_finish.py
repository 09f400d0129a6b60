"""The rule that a trained network gets, and what is written of it."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file

from cpr_wrap.selective import CONFIG, WEIGHTS
from cpr_wrap.training.loop import finished_model
from cpr_wrap.training.recipes import RECIPES
from tests.toys import Curved, pixels
from tests.training.making import small_network


def test_a_threshold_is_set_on_validation_images():
    network, x = Curved(4), pixels(40)
    with torch.no_grad():
        y = network(x).argmax(dim=1)
    rule = finished_model(RECIPES["mnist-compact-ccat"], network, (x, y), (), {}).rule
    confidence = network(x).softmax(dim=1).amax(dim=1)
    assert rule.name == "confidence"
    # One percent of 40 is less than one image.
    assert 0 < rule.threshold <= confidence.min()


def test_without_validation_images_everything_is_accepted_with_a_warning():
    with pytest.warns(UserWarning, match="'confidence' stays 0, which accepts everything"):
        model = finished_model(RECIPES["mnist-compact-ccat"], Curved(4), None, (), {})
    assert model.rule.threshold == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = finished_model(RECIPES["mnist-compact-at"], Curved(4), None, (), {})
    assert model.rule.name == "cpr"


def test_models_are_written_contiguous_with_their_config(tmp_path):
    network = small_network().to(memory_format=torch.channels_last).eval()
    facts = {"network": None, "seed": 4}
    finished_model(RECIPES["mnist-compact-at"], network, None, (), facts).save(tmp_path)
    read = load_file(tmp_path / WEIGHTS)
    for name, tensor in network.state_dict().items():
        assert torch.equal(read[name], tensor)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert (config["seed"], config["rule"]["name"], config["recipe"]["seed"]) == (4, "cpr", 0)
    assert (config["norm"], config["eps"], config["history"]) == ("Linf", 0.3, [])
    assert {p.name for p in tmp_path.iterdir()} == {WEIGHTS, CONFIG}
