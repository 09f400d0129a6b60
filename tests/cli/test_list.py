"""`cpr-wrap list`: what can be named can be listed."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.data import DATASETS
from cpr_wrap.rules import RULES
from cpr_wrap.training import RECIPES
from cpr_wrap.zoo import ZOOS
from cpr_wrap.zoo.local import bundled_names

_REGISTRIES = {
    "sources": ZOOS,
    "rules": RULES,
    "budgets": BUDGETS,
    "datasets": DATASETS,
    "recipes": RECIPES,
}


@pytest.mark.parametrize("kind", _REGISTRIES)
def test_all_names_of_a_registry_with_a_word_on_each(kind, type_command):
    listed = json.loads(type_command("list", kind, "--json").stdout)
    assert list(listed) == [kind]
    assert list(listed[kind]) == list(_REGISTRIES[kind])
    assert all(listed[kind].values())


def test_bundled_models(type_command):
    listed = json.loads(type_command("list", "models", "--json").stdout)["models"]
    assert list(listed) == [f"bundled:{name}" for name in bundled_names()]
    assert listed["bundled:mnist-compact-at"] == "mnist, trained for Linf eps 0.3, rule cpr"


def test_everything_at_once(type_command):
    listed = json.loads(type_command("list", "--json").stdout)
    kinds = ["models", "sources", "rules", "attacks", "budgets", "datasets", "recipes"]
    assert list(listed) == kinds


def test_lines_for_people(type_command):
    lines = type_command("list", "datasets").stdout.splitlines()
    assert lines[0] == "datasets:"
    assert "  mnist    10 classes, gray 28 x 28, 2,000 test images bundled" in lines


def test_like(type_command):
    listed = json.loads(type_command("list", "recipes", "--like", "COMPACT-AT", "--json").stdout)
    assert set(listed["recipes"]) == {
        "cifar10-compact-at",
        "mnist-compact-at",
        "mnist-compact-atrr",
    }
    assert type_command("list", "recipes", "--like", "nix").stdout == "recipes:\n  none\n"


def test_timms_models(type_command):
    words = ("list", "models", "--source", "timm", "--like", "resnet18.a1", "--json")
    assert "timm:resnet18.a1_in1k" in json.loads(type_command(*words).stdout)["models"]


@pytest.mark.skipif(find_spec("robustbench") is None, reason="RobustBench is not installed")
def test_robustbenchs_models(type_command):
    words = ("list", "models", "--source", "robustbench", "--like", "rice2020", "--json")
    models = json.loads(type_command(*words).stdout)["models"]
    assert "robustbench:cifar10/Linf/Rice2020Overfitting" in models
