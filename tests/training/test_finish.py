"""The rule that a trained network gets."""

from __future__ import annotations

import warnings

import pytest
import torch

from cpr_wrap.training.finish import trained_rule
from cpr_wrap.training.recipes import RECIPES
from tests.toys import Curved, pixels


def test_a_threshold_is_set_on_validation_images():
    network, x = Curved(4), pixels(40)
    with torch.no_grad():
        y = network(x).argmax(dim=1)
    rule = trained_rule(RECIPES["mnist-compact-ccat"], network, (x, y))
    confidence = network(x).softmax(dim=1).amax(dim=1)
    assert rule.name == "confidence"
    # One percent of 40 is less than one image.
    assert 0 < rule.threshold <= confidence.min()


def test_without_validation_images_everything_is_accepted_with_a_warning():
    with pytest.warns(UserWarning, match="'confidence' stays 0, which accepts everything"):
        rule = trained_rule(RECIPES["mnist-compact-ccat"], Curved(4), None)
    assert rule.threshold == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained_rule(RECIPES["mnist-compact-at"], Curved(4), None).name == "cpr"
