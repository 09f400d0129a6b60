"""Images in folders."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from cpr_wrap.data import FolderImages, load_folder


@pytest.fixture
def folder(tmp_path):
    """Two classes; the red value of each 4x6 image is 10 times its number."""
    for number, place in enumerate(["cat/a.png", "cat/b.PNG", "cat/deep/c.bmp", "dog/a.png"]):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (10 * number, 0, 255)).save(path)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "stray.png").write_bytes(b"outside of any class")
    return tmp_path


def test_classes_are_folders_in_order(folder):
    data = load_folder(folder)
    assert data.images.shape == (4, 3, 4, 6)
    assert data.labels.tolist() == [0, 0, 0, 1]
    assert data.indices.tolist() == [0, 1, 2, 3]
    assert torch.allclose(
        data.images[:, :, 0, 0],
        torch.tensor([[0, 0, 1], [10 / 255, 0, 1], [20 / 255, 0, 1], [30 / 255, 0, 1]]),
    )
    assert (data.num_classes, data.name, data.part) == (2, folder.name, "folder")


def test_grey_images_become_colour(tmp_path):
    (tmp_path / "one").mkdir()
    Image.new("L", (2, 2), 51).save(tmp_path / "one" / "grey.png")
    assert torch.allclose(load_folder(tmp_path).images, torch.tensor(0.2))


def test_transform_sees_the_image(folder):
    data = load_folder(folder, transform=lambda image: torch.full((1, 1, 1), image.size[0] / 10))
    assert torch.allclose(data.images, torch.full((4, 1, 1, 1), 0.6))


def test_num_is_spread_over_all_images(folder):
    data = load_folder(folder, num=2)
    assert data.indices.tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"num: expected 1 to 4.*got 5"):
        load_folder(folder, num=5)


def test_no_folder(tmp_path):
    with pytest.raises(ValueError, match="expected a folder of images, got no folder"):
        load_folder(tmp_path / "nowhere")


def test_no_images(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match="got 1 folders and no image in them"):
        load_folder(tmp_path)


def test_sizes_must_agree(folder):
    Image.new("RGB", (5, 5)).save(folder / "dog" / "b.png")
    with pytest.raises(ValueError, match=r"expected images of one size.*pass a transform"):
        load_folder(folder)


def test_not_an_image(folder):
    (folder / "dog" / "b.png").write_bytes(b"half")
    with pytest.raises(RuntimeError, match=r"b.png cannot be read as an image"):
        load_folder(folder)


def test_transform_that_normalises(folder):
    with pytest.raises(ValueError, match=r"expected pixels in \[0, 1\].*normalised already"):
        load_folder(folder, transform=lambda _: torch.full((1, 1, 1), -2.0))


def test_images_read_one_by_one_are_those_of_the_whole(folder):
    whole, lazy = load_folder(folder, num=3), FolderImages(folder, num=3)
    assert (lazy.name, lazy.num_classes) == (whole.name, whole.num_classes)
    assert len(lazy) == len(whole) == 3
    for position in range(3):
        pixels, label = lazy[position]
        assert torch.equal(pixels, whole.images[position])
        assert label == whole.labels[position]
