"""Your own images: files, folders and functions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from cpr_wrap.data import ImageData, donor_pool, load_data
from cpr_wrap.data.datasets import _BUNDLED
from cpr_wrap.data.images import read_pairs

# Four images of 5 x 6 pixels whose first pixel is their number in 255ths.
BYTES = np.zeros((4, 5, 6), dtype=np.uint8)
BYTES[:, 0, 0] = [1, 2, 3, 4]
LABELS = np.array([2, 0, 1, 2])


def colours(images):
    return np.stack([images, images, images], axis=-1)


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (BYTES, (1, 5, 6)),
        (BYTES / 255, (1, 5, 6)),
        ((BYTES / 255).astype(">f4"), (1, 5, 6)),
        (colours(BYTES), (3, 5, 6)),
        (colours(BYTES).transpose(0, 3, 1, 2), (3, 5, 6)),
        (BYTES[..., None], (1, 5, 6)),
        ((colours(BYTES) / 255).astype(np.float32), (3, 5, 6)),
    ],
)
def test_a_file_in_any_layout(tmp_path, images, shape):
    np.savez_compressed(tmp_path / "mine.npz", images=images, labels=LABELS)
    data = load_data(tmp_path / "mine.npz")
    assert data.images.shape == (4, *shape)
    assert data.images.dtype == torch.float32
    assert torch.allclose(data.images[:, :, 0, 0], (torch.arange(4) + 1)[:, None] / 255)
    assert data.images.sum().item() == pytest.approx(shape[0] * 10 / 255)
    assert data.labels.tolist() == LABELS.tolist()
    assert (data.name, data.num_classes, data.indices.tolist()) == ("mine", 3, [0, 1, 2, 3])
    some = load_data(str(tmp_path / "mine.npz"), indices=[3, 1])
    assert some.labels.tolist() == [2, 0]
    assert (some.indices.tolist(), some.num_classes) == ([3, 1], 3)


def test_a_file_with_two_halves_and_the_number_of_classes(tmp_path):
    arrays = {"train_images": BYTES[:3], "train_labels": LABELS[:3], "num_classes": 10}
    np.savez(tmp_path / "mine.npz", test_images=BYTES, test_labels=LABELS, **arrays)
    assert len(load_data(tmp_path / "mine.npz", "train")) == 3
    data = load_data(tmp_path / "mine.npz", start=2)
    assert (data.indices.tolist(), data.num_classes) == ([2, 3], 10)


def test_files_that_do_not_do(tmp_path):
    path = tmp_path / "mine.npz"
    with pytest.raises(LookupError, match=r"expected a file of images, got .*, which does not"):
        load_data(path)
    np.savez(path, images=BYTES.astype(float), labels=LABELS)
    with pytest.raises(ValueError, match=r"mine: expected pixels in \[0, 1\], got \[0, 4\]"):
        load_data(path)
    np.savez(path, images=BYTES, labels=LABELS - 1)
    with pytest.raises(ValueError, match="mine: expected labels from 0"):
        load_data(path)
    np.savez(path, images=np.zeros((2, 3, 5, 3), np.uint8), labels=LABELS[:2])
    with pytest.raises(ValueError, match=r"to tell \(N, H, W, C\) from .*got \(2, 3, 5, 3\)"):
        load_data(path)


def test_a_folder(tmp_path):
    for number in range(4):
        (tmp_path / str(number % 2)).mkdir(exist_ok=True)
        Image.new("L", (3, 3), 51 * number).save(tmp_path / str(number % 2) / f"{number}.png")
    data = load_data(tmp_path, channels=1, start=1, class_map={"0": 4, "1": 2})
    assert data.images.shape == (3, 1, 3, 3)
    assert data.labels.tolist() == [4, 2, 2]
    assert data.indices.tolist() == [1, 2, 3]
    assert load_data(str(tmp_path), num=2).indices.tolist() == [0, 2]
    assert load_data(str(tmp_path), indices=[3]).indices.tolist() == [3]


# Functions


def pairs():
    return torch.from_numpy(BYTES), LABELS


def image_data():
    return ImageData(
        images=torch.from_numpy(BYTES)[:, None] / 255,
        labels=torch.from_numpy(LABELS),
        indices=torch.arange(10, 14),
        name="mine",
        part="all",
        num_classes=5,
    )


def dataset():
    return TensorDataset(torch.from_numpy(BYTES)[:, None] / 255, torch.from_numpy(LABELS))


def number():
    return 5


def of_numbers():
    return [(1, 2), (3, 4), (5, 6)]


@pytest.mark.parametrize("function", [pairs, image_data, dataset])
def test_a_function_by_its_address(function):
    address = f"{__name__}:{function.__name__}"
    whole = load_data(address)
    assert whole.labels.tolist() == LABELS.tolist()
    some = load_data(address, start=1, num=2)
    assert some.labels.tolist() == [0, 1]
    assert torch.equal(some.images, whole.images[1:3])
    assert some.images.shape == (2, 1, 5, 6)
    if function is image_data:
        assert (some.indices.tolist(), some.num_classes) == ([11, 12], 5)
    else:
        assert (some.name, some.indices.tolist(), whole.num_classes) == (address, [1, 2], 3)


@pytest.mark.parametrize("label", [lambda n: torch.tensor([n]), lambda n: np.array([[n]])])
def test_labels_that_are_arrays_of_one_number(label):
    images = torch.from_numpy(BYTES)[:, None] / 255
    data = [(image, label(int(n))) for image, n in zip(images, LABELS, strict=True)]
    x, y = read_pairs(data, range(4))
    assert torch.equal(x, images)
    assert (y.tolist(), y.dtype) == (LABELS.tolist(), torch.int64)


def test_functions_that_return_something_else():
    with pytest.raises(TypeError, match=r"test_own:number: expected it to return .* got int"):
        load_data(f"{__name__}:number")
    with pytest.raises(TypeError, match=r"of_numbers: image 0: expected .* pixels .* torch\.int64"):
        load_data(f"{__name__}:of_numbers")
    with pytest.raises(LookupError, match=r"unknown name in .*'pears'.* Did you mean 'pairs'"):
        load_data(f"{__name__}:pears")


# Donors


def test_the_donors_of_mnist_come_with_the_package(monkeypatch, tmp_path):
    monkeypatch.delenv("CPR_WRAP_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    pool = donor_pool("mnist", per_class=3)
    assert pool.images.shape == (30, 1, 28, 28)
    assert pool.labels.tolist() == [label for label in range(10) for _ in range(3)]
    assert pool.digest == donor_pool("mnist", per_class=3).digest
    assert pool.digest != donor_pool("mnist", per_class=4).digest
    assert len(donor_pool("mnist", per_class=500).labels) == 5_000
    assert len(donor_pool("mnist", per_class=501).labels) == 5_000, "as many as there are"
    assert (_BUNDLED / "train_pool.npz").stat().st_size < 1_000_000
    with pytest.raises(ValueError, match="per_class: expected at least 1, got 0"):
        donor_pool("mnist", per_class=0)


def test_donors_are_not_among_the_test_images():
    donors = donor_pool("mnist", per_class=500).images.flatten(1)
    test = load_data("mnist", "test").images.flatten(1)
    assert torch.cdist(donors, test).min() > 0.5


def test_donors_of_other_data_sets_come_from_their_training_part(monkeypatch, tmp_path):
    monkeypatch.delenv("CPR_WRAP_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert donor_pool("cifar10") is None
    images = np.random.default_rng(0).integers(0, 255, (30, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(30) % 10
    np.savez(tmp_path / "cifar10_train.npz", images=images, labels=labels)
    monkeypatch.setenv("CPR_WRAP_DATA", str(tmp_path))
    pool = donor_pool("cifar10", per_class=2)
    assert torch.equal(pool.images[1].mul(255).round(), torch.tensor(images[10]).permute(2, 0, 1))
    assert pool.labels.bincount().tolist() == [2] * 10


@pytest.mark.skipif("CPR_WRAP_DATA" not in os.environ, reason="CPR_WRAP_DATA is not set")
def test_the_donors_are_mnists_first_training_images():
    if not (Path(os.environ["CPR_WRAP_DATA"]) / "mnist.npz").is_file():
        pytest.skip("no mnist.npz")
    real = load_data("mnist", "train", num=6_000)
    pool = donor_pool("mnist", per_class=500)
    for label in range(10):
        rows = (real.labels == label).nonzero().flatten()[:500]
        assert torch.equal(pool.images[pool.labels == label], real.images[rows])
