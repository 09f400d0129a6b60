from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_card import CardFigures, card_text, make_card, measure_figures, write_card

import cpr_wrap
from cpr_wrap.data import ImageData
from cpr_wrap.rules import AcceptAll, Confidence
from cpr_wrap.selective import CONFIG, SelectiveClassifier
from cpr_wrap.training import train
from cpr_wrap.zoo.local import bundled_names
from tests.toys import Line
from tests.training.making import quick_recipe, stripes

# distances to the boundary at 0.5: 0.05, 0.15, 0.25, 0.35, and one on the wrong side
X = torch.tensor([[0.55], [0.35], [0.75], [0.15], [0.9]], dtype=torch.float64)
Y = torch.tensor([1, 0, 1, 0, 0])


class Shift:
    """An attack that knows this network: straight to the other side."""

    def perturb(self, model, x, y, eps, *, norm, seed, index):
        assert (norm, seed) == ("Linf", 0)
        assert index.tolist() == list(range(len(x)))
        return (x + eps * (1 - 2 * y)[:, None]).clamp(0, 1)


def test_figures_on_a_line():
    model = SelectiveClassifier(Line(slope=2), AcceptAll())
    figures = measure_figures(
        model, X, Y, 0.2, data="five points", autoattack=Shift(), autoattack_images=3
    )
    assert (figures.images, figures.autoattack_images) == (5, 3)
    assert figures.clean_accuracy == 0.8
    assert figures.clean_rejected == 0.0
    assert figures.pgd_accuracy == 0.4
    assert figures.pgd_mistakes == pytest.approx(0.6)
    # leads after the attack: 0.6, 0.2, 0.2, 0.6, and 2 at the far end
    expected = sum(torch.tensor(lead).sigmoid().item() for lead in (0.6, 0.2, 0.2, 0.6, 2.0)) / 5
    assert figures.pgd_confidence == pytest.approx(expected)
    assert figures.autoattack_accuracy == pytest.approx(1 / 3)
    assert figures.autoattack_mistakes == pytest.approx(2 / 3)


def test_figures_count_what_gets_past_the_rule():
    threshold = torch.tensor(0.5).sigmoid().item()  # accepts leads of 0.5 and more
    model = SelectiveClassifier(Line(slope=2), Confidence(threshold=threshold))
    figures = measure_figures(model, X, Y, 0.2, data="five points")
    assert figures.clean_rejected == pytest.approx(0.2)
    # of the three mistakes, that at 0.55 - 0.2 leads by 0.6, that at 0.35 + 0.2 by 0.2
    assert figures.pgd_mistakes == pytest.approx(0.4)
    assert figures.autoattack_accuracy is None


def test_the_card_tells_the_recipe_and_the_figures(tmp_path):
    recipe = quick_recipe("trades", epochs=1, network="lenet-compact")
    x, y = stripes(24)
    x = torch.nn.functional.pad(x, (1, 1, 1, 1))
    result = train(recipe, (x, y), out=tmp_path, progress=False)
    model = SelectiveClassifier(result.network, AcceptAll())
    figures = measure_figures(model, x, y, 0.1, data="stripes")
    figures = replace(
        figures, autoattack_images=7, autoattack_accuracy=0.25, autoattack_mistakes=0.5
    )
    text = write_card(tmp_path, "stripes-trades", figures).read_text()
    for part in (
        "# stripes-trades",
        "cpr-wrap train --recipe stripes-trades --out",
        "with seed 1",
        "`trades` (eps 0.1, steps 5",
        f"| clean accuracy | {100 * figures.clean_accuracy:.1f}% |",
        f"| accuracy under PGD, 40 steps | {100 * figures.pgd_accuracy:.1f}% |",
        "| accuracy under AutoAttack (standard, first 7 images) | 25.0% |",
        "On 24 images (stripes)",
    ):
        assert part in text
    config = json.loads((tmp_path / CONFIG).read_text())
    assert config["figures"]["pgd_accuracy"] == figures.pgd_accuracy
    assert config["recipe"]["method"]["name"] == "trades"


def test_a_card_is_made_of_a_folder_and_test_images(tmp_path):
    recipe = quick_recipe("at", epochs=1, network="lenet-compact")
    x, y = stripes(24)
    data = ImageData(
        images=torch.nn.functional.pad(x, (1, 1, 1, 1)),
        labels=y,
        indices=torch.arange(100, 124),
        name="mnist",
        part="robust",
        num_classes=3,
    )
    train(recipe, data, out=tmp_path, progress=False)
    text = make_card(tmp_path, "stripes-at", data, autoattack_images=0).read_text()
    assert "On 24 images (test images 100 to 123 of mnist), Linf attacks with eps = 0.1" in text
    assert "AutoAttack" not in text


def test_a_card_needs_an_eps_from_the_training_or_from_the_data_set(tmp_path):
    x, y = stripes(24)
    data = ImageData(
        images=torch.nn.functional.pad(x, (1, 1, 1, 1)),
        labels=y,
        indices=torch.arange(24),
        name="my-images",
        part="folder",
        num_classes=3,
    )
    for name in ("at", "standard"):
        recipe = quick_recipe(name, epochs=1, network="lenet-compact")
        train(recipe, data, out=tmp_path / name, progress=False)
    text = make_card(tmp_path / "at", "mine", data, pgd_steps=2, autoattack_images=0).read_text()
    assert "Linf attacks with eps = 0.1" in text
    with pytest.raises(ValueError, match="no eps is known for 'my-images'; expected a model with"):
        make_card(tmp_path / "standard", "mine", data, autoattack_images=0)


@pytest.mark.parametrize("name", bundled_names())
def test_the_bundled_cards_are_written_by_it(name):
    folder = Path(cpr_wrap.__file__).parent / "bundled" / "models" / name
    config = json.loads((folder / CONFIG).read_text())
    text = card_text(name, config, CardFigures(**config["figures"]))
    assert (folder / "README.md").read_text() == text
