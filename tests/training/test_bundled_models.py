"""The models that come with the package are what their cards say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import cpr_wrap
from cpr_wrap.data import load_data
from cpr_wrap.selective import RULES
from cpr_wrap.training.measure import clean_accuracy, pgd_accuracy
from cpr_wrap.training.recipes import RECIPES, describe_recipe

FOLDER = Path(cpr_wrap.__file__).parent / "bundled" / "models"
MODELS = sorted(path.name for path in FOLDER.iterdir())
MNIST = [name for name in MODELS if name.startswith("mnist")]


def config_of(name):
    return json.loads((FOLDER / name / "config.json").read_text())


@pytest.fixture(scope="module")
def test_images(tmp_path_factory):
    """The bundled ones, whatever else there is."""
    return load_data("mnist", "robust", data_dir=tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("name", MODELS)
def test_the_recipe_is_still_the_one_it_was_made_by(name):
    assert config_of(name)["recipe"] == json.loads(json.dumps(describe_recipe(RECIPES[name])))


@pytest.mark.parametrize("name", MODELS)
def test_it_is_small_has_a_card_and_loads_with_the_rule_of_its_method(name):
    files = {path.name: path.stat().st_size for path in (FOLDER / name).iterdir()}
    assert set(files) == {"model.safetensors", "config.json", "README.md"}
    assert files["model.safetensors"] < 2_000_000
    model = cpr_wrap.load(f"bundled:{name}")
    assert isinstance(model.rule, RULES[RECIPES[name].method.rule_name])
    assert {p.dtype for p in model.base.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", MNIST)
def test_its_clean_accuracy_is_that_of_the_card(name, test_images):
    model = cpr_wrap.load(f"bundled:{name}")
    count = config_of(name)["figures"]["images"]
    x, y = test_images.images[:count], test_images.labels[:count]
    found = clean_accuracy(model.base, x, y, 10)
    # float rounding differs between machines: one image in a thousand
    assert found == pytest.approx(config_of(name)["figures"]["clean_accuracy"], abs=0.0011)


@pytest.mark.parametrize("name", ["mnist-compact-atrr", "mnist-compact-ccat"])
def test_its_threshold_rejects_one_percent_of_the_right_answers_on_validation_images(
    name, tmp_path
):
    model = cpr_wrap.load(f"bundled:{name}")
    held_out = load_data("mnist", "validation", data_dir=tmp_path)
    assert len(held_out) == 1000
    answer = model(held_out.images)
    right = answer.predicted == held_out.labels
    rejected = (right & ~answer.accepted).sum() / right.sum()
    assert 0.008 <= rejected <= 0.011


@pytest.mark.integration
@pytest.mark.parametrize("name", MNIST)
def test_its_robust_accuracy_is_near_that_of_the_card(name, test_images):
    model = cpr_wrap.load(f"bundled:{name}")
    x, y = test_images.images[:100], test_images.labels[:100]
    found = pgd_accuracy(model.base, x, y, 10, config_of(name)["figures"]["eps"], steps=10)
    # fewer images and steps than the card's: three standard errors, and some for the steps
    assert found == pytest.approx(config_of(name)["figures"]["pgd_accuracy"], abs=0.12)


@pytest.mark.slow
def test_the_cifar10_model_is_what_its_card_says():
    try:
        data = load_data("cifar10", "robust")
    except LookupError:
        pytest.skip("CIFAR-10 is not here")
    model = cpr_wrap.load("bundled:cifar10-compact-at")
    figures = config_of("cifar10-compact-at")["figures"]
    found = clean_accuracy(model.base, data.images, data.labels, 10)
    assert found == pytest.approx(figures["clean_accuracy"], abs=0.0011)
    x, y = data.images[:200], data.labels[:200]
    found = pgd_accuracy(model.base, x, y, 10, 8 / 255, steps=10)
    assert found == pytest.approx(figures["pgd_accuracy"], abs=0.12)
    assert figures["pgd_accuracy"] >= 0.3
