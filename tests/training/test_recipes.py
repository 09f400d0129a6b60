from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cpr_wrap.networks import build_network, network_settings
from cpr_wrap.rules import Consistency, RejectClass
from cpr_wrap.training.method import METHODS, AdversarialMethod
from cpr_wrap.training.methods import AT, RCD, TRADES
from cpr_wrap.training.recipes import RECIPES, Decay, Milestones, Recipe, describe_recipe

SHAPES = {"mnist": (1, 28, 28), "svhn": (3, 32, 32), "cifar10": (3, 32, 32)}


@pytest.mark.parametrize("dataset", SHAPES)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "ibp"])
def test_every_method_has_a_recipe_for_every_data_set_of_the_paper(dataset, method):
    recipe = RECIPES[f"{dataset}-{method}"]
    assert recipe.dataset == dataset
    assert recipe.method.name == method
    if isinstance(recipe.method, AdversarialMethod):
        assert recipe.method.eps == (0.3 if dataset == "mnist" else 8 / 255)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_written_down_and_built(name):
    recipe = RECIPES[name]
    plain = json.loads(json.dumps(describe_recipe(recipe)))
    assert plain["method"]["name"] == recipe.method.name
    assert plain["schedule"]["name"] == recipe.schedule.name
    assert (plain["epochs"], plain["lr"]) == (recipe.epochs, recipe.lr)
    if not name.startswith(("svhn", "cifar10-")) or "compact" in name:
        method = recipe.method
        settings = network_settings(
            recipe.network,
            SHAPES[recipe.dataset],
            10 + method.extra_outputs,
            auxiliary=method.auxiliary,
        )
        assert build_network(recipe.network, **settings) is not None


def test_the_papers_numbers():
    at = {name: RECIPES[f"{name}-at"] for name in SHAPES}
    assert [at[n].epochs for n in SHAPES] == [100, 200, 110]
    assert [at[n].method.steps for n in SHAPES] == [40, 10, 10]
    assert [at[n].method.step_size for n in SHAPES] == [0.01, 2 / 255, 2 / 255]
    assert [at[n].schedule for n in ("mnist", "svhn")] == [Decay(rate=0.95)] * 2
    assert at["cifar10"].schedule == Milestones(epochs=(100, 105))
    assert [at[n].nesterov for n in SHAPES] == [False, False, True]
    assert [at[n].weight_decay for n in SHAPES] == [0, 0, 5e-4]
    assert [RECIPES[f"{n}-trades"].method.beta for n in SHAPES] == [1, 6, 6]
    assert [RECIPES[f"{n}-rcd"].lr for n in SHAPES] == [0.1, 0.05, 0.1]
    assert [RECIPES[f"{n}-ccat"].lr for n in SHAPES] == [0.1, 0.1, 0.075]
    assert [RECIPES[f"{n}-ccat"].batch_size for n in SHAPES] == [100, 100, 100]
    assert [RECIPES[f"{n}-ccat"].epochs for n in SHAPES] == [100, 200, 200]
    assert all(RECIPES[f"{n}-ccat"].method.pgd.backtrack == 1.5 for n in SHAPES)
    assert RECIPES["mnist-at"].rule_settings == {"radius": 0.1, "steps": 20, "step_size": 0.01}


def test_what_the_published_code_does_otherwise_has_its_own_name():
    text, code = RECIPES["cifar10-at"], RECIPES["cifar10-at-published"]
    assert code == replace(
        text, nesterov=False, method=replace(text.method, start="ray-or-zero", keep="best")
    )
    assert RECIPES["svhn-trades-published"].epochs == 200
    assert RECIPES["svhn-trades-published"].method.step_size == 2 / 255
    assert "mnist-trades-published" not in RECIPES


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"method": "at"}, TypeError, r"method: expected a training method like AT\(\), got 'at'"),
        ({"schedule": 0.1}, TypeError, r"schedule: expected a schedule like Linear\(\)"),
        ({"epochs": 0}, ValueError, "epochs: expected a whole number of at least 1, got 0"),
        ({"batch_size": 1.5}, ValueError, "batch_size: expected a whole number"),
        ({"lr": 0.0}, ValueError, "lr: expected a finite number above 0"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay: expected a finite number of at least"),
        ({"reject_rate": 1.0}, ValueError, "reject_rate: expected a number between 0 and 1"),
        ({"momentum": 1.0}, ValueError, r"momentum: expected a number in \[0, 1\), got 1.0"),
        ({"warmup": 2.0}, ValueError, "warmup: expected a share of the training, got 2.0"),
        ({"network": "resnet21"}, LookupError, "unknown network 'resnet21'. Did you mean"),
        ({"rule_settings": {"radios": 1}}, ValueError, "rule 'cpr' has no setting 'radios'"),
        ({"augmentation": "crop"}, LookupError, "unknown augmentation 'crop'"),
    ],
)
def test_impossible_recipes_are_refused(change, error, match):
    with pytest.raises(error, match=match):
        replace(Recipe(method=AT()), **change)


def test_another_method_keeps_the_rules_settings_only_with_the_rule():
    at = RECIPES["mnist-compact-at"]
    assert at.rule == Consistency(radius=0.1, steps=20, step_size=0.01)
    assert at.with_method(TRADES(eps=0.2)).rule == at.rule
    rcd = at.with_method(RCD(eps=0.2))
    assert rcd.rule == RejectClass()
    assert replace(rcd, method=at.method, rule_settings=at.rule_settings) == at
