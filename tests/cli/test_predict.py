"""`cpr-wrap predict`: image files in, a label or a reason out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cpr_wrap.cli.predict import explain, pictures_at, read_picture, sentence
from cpr_wrap.data import load_data
from cpr_wrap.rules import Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.zoo import ZooModel, load
from tests.toys import Line


@pytest.fixture
def digits(tmp_path):
    """Four digits as files: PNG and JPEG, gray and color, small and large."""
    folder = tmp_path / "digits"
    (folder / "more").mkdir(parents=True)
    data = load_data("mnist", "robust", num=4)
    pictures = [Image.fromarray(np.uint8(image[0] * 255)) for image in data.images.numpy()]
    pictures[0].save(folder / "a.png")
    pictures[1].resize((280, 280)).save(folder / "b.jpg", quality=95)
    pictures[2].convert("RGB").save(folder / "c.png")
    pictures[3].convert("P").save(folder / "more" / "d.gif")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def test_explain_on_a_line():
    """The boundary is at 0.5; T moves by 0.1, and the lead there is 2 · (distance after it)."""
    model = SelectiveClassifier(Line(), Consistency(radius=0.1, steps=2, step_size=0.05))
    x = torch.tensor([[0.2], [0.55]], dtype=torch.float64)
    sure, unsure = explain(model, x)
    assert (sure["label"], sure["predicted"]) == (0, 0)
    assert sure["score"] == pytest.approx(2 * (0.3 - 0.1))
    assert (unsure["label"], unsure["predicted"]) == (-1, 1)
    assert unsure["score"] == pytest.approx(-2 * (0.1 - 0.05))
    probability = torch.tensor([-0.05, 0.05]).softmax(0)[1].item()
    assert sentence(unsure) == (
        f"REJECT\twould be 1 (probability {probability:.3f}), but the prediction changes to 0 at "
        "T(x), by 0.1"
    )
    _, named = explain(model, x, ["low", "high"])
    assert "the prediction changes to low at T(x)" in sentence(named, ["low", "high"])
    assert sentence(sure, ["low", "high"]).startswith("low\tprobability 0.")


def test_explain_a_score():
    model = SelectiveClassifier(Line(), Confidence(threshold=0.9))
    (answer,) = explain(model, torch.tensor([[0.5]], dtype=torch.float64))
    assert answer["label"] == -1
    assert sentence(answer).endswith("but confidence score 0.5 is below 0.9")


def test_files_come_in_order_and_at_the_models_size(digits):
    files = pictures_at(digits)
    assert [file.name for file in files] == ["a.png", "b.jpg", "c.png", "d.gif"]
    facts = ZooModel(network=torch.nn.Identity(), address="x", input_shape=(1, 28, 28))
    images = [read_picture(file, facts) for file in files]
    expected = load_data("mnist", "robust", num=4).images
    for exact in (0, 2, 3):
        assert torch.equal(images[exact], expected[exact])
    assert (images[1] - expected[1]).abs().mean() < 0.02


def test_a_color_model_gets_color_and_its_own_transform_comes_first(digits):
    file = digits / "a.png"
    facts = ZooModel(network=torch.nn.Identity(), address="x", input_shape=(3, 14, 14))
    assert read_picture(file, facts).shape == (3, 14, 14)
    facts = ZooModel(network=torch.nn.Identity(), address="x")
    assert read_picture(file, facts).shape == (3, 28, 28)
    modes = []

    def transform(image):
        modes.append(image.mode)
        return torch.zeros(3, 5, 5)

    facts = ZooModel(network=torch.nn.Identity(), address="x", transform=transform)
    assert (read_picture(file, facts).shape, modes) == ((3, 5, 5), ["RGB"])


def test_one_line_for_each_file(saved, digits, type_command):
    answer = type_command("predict", f"local:{saved}", digits, "--batch-size", "3")
    labels = load(saved).predict(load_data("mnist", "robust", num=4).images).tolist()
    lines = [line.split("\t") for line in answer.stdout.splitlines()]
    assert [Path(line[0]).name for line in lines] == ["a.png", "b.jpg", "c.png", "d.gif"]
    assert [line[1] for line in lines] == [str(label) for label in labels]


def test_rejections_say_why_and_classes_have_names(saved, digits, type_command, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("".join(f"digit-{k}\n" for k in range(10)))
    words = ("predict", f"local:{saved}", digits / "a.png", "--class-names", names)
    words += ("--radius", "0.4", "--steps", "10", "--step-size", "0.1")
    answer = type_command(*words)
    file, label, why = answer.stdout.rstrip("\n").split("\t")
    assert (file, label) == (str(digits / "a.png"), "REJECT")
    assert why.startswith("would be digit-")
    assert "but the prediction changes to digit-" in why
    [row] = json.loads(type_command(*words, "--json").stdout)
    assert (row["label"], row["name"], row["rule"]) == (-1, None, "cpr")
    assert row["score"] < 0
    assert "changes to digit-" in row["why"]


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("nothing.png", "expected an image file or a folder of them, got nothing there"),
        ("empty", "expected image files in it"),
        ("broken.png", "cannot be read as an image"),
    ],
)
def test_what_is_no_picture_is_one_line(path, complaint, saved, type_command, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    answer = type_command("predict", f"local:{saved}", path)
    assert answer.exit_code == 1
    [line] = answer.stderr.splitlines()
    assert line.startswith(f"error: {path}")
    assert complaint in line
