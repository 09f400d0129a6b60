"""`cpr-wrap train`: exact calls, changes to a recipe, and a real training of seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from cpr_wrap.cli.commands import Changes
from cpr_wrap.cli.train import changed
from cpr_wrap.data import load_data
from cpr_wrap.training import AT, CCAT, RECIPES, TRADES, FastAT, StandardTraining
from cpr_wrap.zoo import load


def _record(**changes):
    known = {"loss": 0.5, "validation_clean": 0.9, "validation_robust": None}
    return SimpleNamespace(**{**known, **changes})


@pytest.fixture
def calls(monkeypatch):
    made = []

    def train(recipe, data, **options):
        made.append((recipe, data, options))
        return SimpleNamespace(history=(_record(),), folder=options["out"])

    monkeypatch.setattr("cpr_wrap.cli.train.train_network", train)
    return made


@pytest.fixture
def images(tmp_path):
    """An image folder: dark pictures and bright ones."""
    folder = tmp_path / "images"
    for name, shade in (("dark", 30), ("light", 220)):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            picture = Image.new("RGB", (16, 16), (shade + number, shade, shade))
            picture.save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """A data folder whose training images are bundled test images."""
    import numpy as np

    folder = tmp_path / "store"
    folder.mkdir()
    data = load_data("mnist", "validation", num=200)
    content = {"images": np.uint8(data.images[:, 0] * 255), "labels": data.labels.numpy()}
    np.savez(folder / "mnist_train.npz", **content)
    return folder


def test_the_library_is_called_with_what_was_typed(calls, mnist, type_command):
    words = ["--recipe", "mnist-compact-at", "--out", "here", "--data-dir", mnist, "-n", "100"]
    words += ["--epochs", "2", "--lr", "0.01", "--seed", "7", "--batch-size", "50"]
    words += ["--no-resume", "--early-stop", "3", "--amp", "--compile", "--workers", "2"]
    answer = type_command("train", *words, "--device", "cpu")
    assert answer.exit_code == 0, answer.output
    [(recipe, data, options)] = calls
    expected = RECIPES["mnist-compact-at"]
    assert recipe == replace(expected, epochs=2, lr=0.01, seed=7, batch_size=50)
    assert (data.part, len(data)) == ("train", 100)
    validation = options.pop("validation")
    assert (validation.part, len(validation)) == ("validation", 1000)
    assert options == {
        "out": Path("here"),
        "resume": False,
        "early_stop": 3,
        "device": torch.device("cpu"),
        "amp": True,
        "compile": True,
        "workers": 2,
    }
    assert answer.stdout.splitlines() == [
        "1 epochs, loss 0.500; on validation images 90.0% clean, – under attack",
        "saved to here; next: cpr-wrap curve local:here --num 100",
    ]


def test_an_image_folder_in_place_of_the_data_set(calls, images, type_command):
    words = ("--recipe", "cifar10-compact-at", "--out", "here", "--images", images)
    assert type_command("train", *words).exit_code == 0
    assert type_command("train", *words, "--validation", images).exit_code == 0
    (_, data, options), (_, _, watched) = calls
    assert (data.num_classes, len(data)) == (2, 12)
    assert options["validation"] is None
    assert len(watched["validation"]) == 12


@pytest.mark.integration
def test_workers_read_an_image_folder_as_it_is_needed(images, type_command):
    words = ["--recipe", "cifar10-compact-at", "--method", "standard", "--images", images]
    words += ["--epochs", "1", "--batch-size", "6", "--device", "cpu", "--network", "timm:test_vit"]
    words += ["--from-scratch", "--workers"]
    for count in ("0", "1"):
        answer = type_command("train", *words, count, "--out", f"with-{count}")
        assert answer.exit_code == 0, answer.output
    whole, lazy = (load(f"local:with-{count}") for count in ("0", "1"))
    for one, other in zip(whole.base.parameters(), lazy.base.parameters(), strict=True):
        assert torch.equal(one, other)
    config = json.loads(Path("with-1/config.json").read_text())
    assert (config["num_classes"], config["dataset"]) == (2, "images")


def test_validation_images_of_other_classes_are_refused(calls, images, tmp_path, type_command):
    folder = tmp_path / "held-out"
    (folder / "light").mkdir(parents=True)
    Image.new("RGB", (16, 16), (220, 220, 220)).save(folder / "light" / "0.png")
    words = ("--recipe", "cifar10-compact-at", "--out", "here", "--images", images)
    answer = type_command("train", *words, "--validation", folder)
    assert answer.exit_code == 1
    assert "--validation: expected the class folders of" in answer.stderr
    assert "dark only in one of both" in answer.stderr
    assert not calls


@pytest.mark.integration
def test_a_timm_network_on_an_image_folder(images, type_command):
    words = ["--recipe", "cifar10-compact-at", "--method", "rcd", "--network", "timm:test_vit"]
    words += ["--from-scratch", "--images", images, "--epochs", "1", "--out", "here", "--device"]
    answer = type_command("train", *words, "cpu")
    assert answer.exit_code == 0, answer.output
    config = json.loads(Path("here/config.json").read_text())
    assert config["base"] == "timm:test_vit"
    assert config["network_settings"] == {"num_classes": 3}  # two classes and RCD's reject class
    assert (config["num_classes"], config["dataset"]) == (2, "images")
    model = load("local:here")
    assert model.rule.name == "rcd"
    assert model(torch.zeros(1, *config["input_shape"])).logits.shape == (1, 2)


def test_a_saved_model_is_trained_on(saved, calls, mnist, type_command):
    words = ("--recipe", "mnist-compact-at", "--network", f"local:{saved}", "--out", "here")
    assert type_command("train", *words, "--data-dir", mnist).exit_code == 0
    [(recipe, _, options)] = calls
    assert recipe == RECIPES["mnist-compact-at"]
    assert options["source"] == {"network": "nearest-mean", "network_settings": {}}
    expected = load(saved).base.state_dict()
    for name, tensor in options["network"].state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_a_change_of_method_keeps_what_both_have():
    recipe = RECIPES["mnist-compact-at"]
    found = changed(recipe, Changes(method="trades"))
    attack = {"eps": recipe.method.eps, "steps": recipe.method.steps, "step_size": 0.1}
    assert found == replace(recipe, method=TRADES(**attack))
    assert changed(recipe, Changes()) == recipe
    other = changed(recipe, Changes(method="ccat"))
    assert isinstance(other.method, CCAT)
    assert other.rule_settings == {}  # a radius is nothing to confidence rejection
    assert changed(recipe, Changes(method="standard")).method == StandardTraining()


def test_a_single_long_step_stays_with_fast_at():
    fast, slow = RECIPES["cifar10-compact-at"], RECIPES["mnist-compact-at"]
    assert changed(fast, Changes(method="at")).method == AT(eps=8 / 255)
    assert changed(fast, Changes(method="trades")).method.steps == TRADES().steps
    assert changed(slow, Changes(method="fast-at")).method == FastAT(eps=0.3)


def test_a_change_of_eps_scales_the_step_too():
    recipe = replace(RECIPES["mnist-compact-at"], method=AT(eps=0.25, steps=7, step_size=0.125))
    found = changed(recipe, Changes(eps=0.125))
    assert found.method == AT(eps=0.125, steps=7, step_size=0.0625)


def test_a_method_without_attack_takes_no_eps(type_command):
    answer = type_command(
        "train", "--recipe", "mnist-compact-standard", "--eps", "0.1", "--out", "here"
    )
    assert answer.exit_code == 1
    assert answer.stderr == "error: method 'standard' does not attack, so it takes no --eps\n"


def test_unknown_recipe_and_missing_images_are_one_line(type_command):
    answer = type_command("train", "--recipe", "mnist-compact-ta", "--out", "here")
    assert answer.exit_code == 1
    assert answer.stderr.startswith("error: unknown recipe 'mnist-compact-ta'. Did you mean")
    answer = type_command("train", "--recipe", "mnist-compact-at", "--out", "here")
    assert answer.exit_code == 1
    assert answer.stderr.startswith("error: no train images of mnist: looked for data/mnist.npz")
    assert len(answer.stderr.splitlines()) == 1


def test_recipe_and_out_are_required(type_command):
    assert type_command("train", "--recipe", "mnist-compact-at").exit_code == 2
    assert type_command("train", "--out", "here").exit_code == 2


def test_ctrl_c_says_where_the_state_is(mnist, monkeypatch, type_command):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("cpr_wrap.cli.train.train_network", interrupted)
    words = ("--recipe", "mnist-compact-at", "--out", "here", "--data-dir", str(mnist))
    answer = type_command("train", *words)
    assert answer.exit_code == 130
    assert "stopped; the last state is in here. To resume" in answer.stderr


def test_a_real_training_ends_in_a_model_that_loads(mnist, type_command):
    words = ("--recipe", "mnist-compact-standard", "--out", "here", "--data-dir", mnist)
    answer = type_command("train", *words, "--epochs", "1", "--device", "cpu", "--json")
    content = json.loads(answer.stdout)
    assert content["folder"] == "here"
    assert [record["epoch"] for record in content["history"]] == [0]
    assert load("local:here").rule.name == RECIPES["mnist-compact-standard"].method.rule_name
