"""Images in folders."""

from __future__ import annotations

import numpy as np
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
    with pytest.raises(ValueError, match=r"expected tensors .* of one size.*pass a transform"):
        load_folder(folder)


def test_not_an_image(folder):
    (folder / "dog" / "b.png").write_bytes(b"half")
    with pytest.raises(RuntimeError, match=r"b.png cannot be read as an image"):
        load_folder(folder)


def test_transform_that_normalises(folder):
    with pytest.raises(ValueError, match=r"expected pixels in \[0, 1\].*normalized already"):
        load_folder(folder, transform=lambda _: torch.full((1, 1, 1), -2.0))


def test_images_read_one_by_one_are_those_of_the_whole(folder):
    whole, lazy = load_folder(folder, num=3), FolderImages(folder, num=3)
    assert (lazy.name, lazy.num_classes) == (whole.name, whole.num_classes)
    assert len(lazy) == len(whole) == 3
    for position in range(3):
        pixels, label = lazy[position]
        assert torch.equal(pixels, whole.images[position])
        assert label == whole.labels[position]


# Depth, color, hidden files


def save_one(folder, array, name="a.png", **how):
    (folder / "class").mkdir(exist_ok=True)
    Image.fromarray(array).save(folder / "class" / name, **how)
    return folder


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("a.png", np.array([[0, 32768], [65535, 257]], np.uint16), [0, 128, 255, 1]),
        ("a.tif", np.array([[0, 32768], [65535, 257]], np.uint16), [0, 128, 255, 1]),
        ("a.pgm", np.array([[0, 32768], [65535, 257]], np.uint16), [0, 128, 255, 1]),
        ("a.tif", np.array([[0.0, 0.5], [1.0, 0.2]], np.float32), [0, 128, 255, 51]),
    ],
)
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_sixteen_bits_and_floats_keep_their_grey_values(tmp_path, name, values, expected, channels):
    images = load_folder(save_one(tmp_path, values, name), channels=channels).images
    assert images.shape == (1, channels or 3, 2, 2)
    grey = torch.tensor(expected).view(2, 2) / 255
    assert torch.allclose(images, grey.expand_as(images))


@pytest.mark.parametrize(
    "values",
    [
        np.array([[0.0, 255.0]], np.float32),
        np.array([[0.0, np.nan]], np.float32),
        np.array([[0, 70_000]], np.int32),
    ],
)
def test_pixels_of_unknown_range_are_refused(tmp_path, values):
    with pytest.raises(ValueError, match=r"a\.tif: expected pixels of 8 or 16 bits.*convert it"):
        load_folder(save_one(tmp_path, values, "a.tif"))


def test_grey_for_a_network_that_takes_grey(folder):
    data = load_folder(folder, channels=1)
    assert data.images.shape == (4, 1, 4, 6)
    seen = load_folder(folder, transform=lambda image: torch.zeros(len(image.getbands()), 1, 1))
    assert seen.images.shape[1] == 3
    with pytest.raises(ValueError, match=r"channels: expected 1 \(gray\) or 3 \(color\), got 4"):
        load_folder(folder, channels=4)


def test_hidden_folders_and_files_are_no_classes_and_no_images(folder):
    for place in (".git/a.png", ".ipynb_checkpoints/a.png", "cat/.thumbs/a.png", "cat/._a.png"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_bytes((folder / "cat" / "a.png").read_bytes())
    data = FolderImages(folder)
    assert data.classes == ["cat", "dog"]
    assert [data[i][1] for i in range(len(data))] == [0, 0, 0, 1]


def test_postscript_in_disguise_never_reaches_ghostscript(folder, monkeypatch):
    import subprocess

    from PIL import EpsImagePlugin

    def run(*args, **kwargs):
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    monkeypatch.setattr(subprocess, "check_call", run)
    Image.new("RGB", (6, 4)).save(folder / "dog" / "b.eps")
    (folder / "dog" / "b.eps").rename(folder / "dog" / "b.png")
    with pytest.raises(RuntimeError, match=r"b\.png cannot be read as an image"):
        load_folder(folder)


def test_a_picture_that_would_fill_the_memory_is_refused(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    with pytest.raises(RuntimeError, match=r"a\.png cannot be read as an image \(Image size"):
        load_folder(folder)


def test_the_name_is_the_folders_own(folder, monkeypatch):
    monkeypatch.chdir(folder / "cat")
    assert FolderImages("..").name == folder.name


# Class maps


def write(path, text):
    path.write_text(text)
    return path


FORMS = {
    "json": '{"dog": 7, "cat": 2, "emu": 9}',
    "index.json": '{"7": ["dog", "Dog"], "2": ["cat", "Cat"], "9": ["emu", "Emu"]}',
    "list.json": '["a", "b", "cat", "c", "d", "e", "f", "dog", "g", "emu"]',
    "txt": "dog 7\ncat 2\n\nemu 9\n",
    "synsets.txt": "a A\nb B\ncat Cat, pet\nc C\nd D\ne E\nf F\ndog Dog\ng G\nemu Emu\n",
}


@pytest.mark.parametrize("form", [dict, *FORMS])
def test_a_class_map_numbers_the_folders(folder, tmp_path_factory, form):
    if form is dict:
        class_map = {"dog": 7, "cat": 2, "emu": 9}
    else:
        class_map = write(tmp_path_factory.mktemp("maps") / f"map.{form}", FORMS[form])
    data = load_folder(folder, class_map=class_map)
    assert data.labels.tolist() == [2, 2, 2, 7]
    assert data.num_classes == 10
    classes = FolderImages(folder, class_map=class_map).classes
    assert (classes[2], classes[7], len(classes)) == ("cat", "dog", 10)


@pytest.mark.parametrize(
    ("class_map", "error", "message"),
    [
        ({"dogs": 1, "cat": 0}, LookupError, "unknown folder of .* 'dog'. Did you mean 'dogs'"),
        ({"dog": "1", "cat": 0}, ValueError, "class_map: expected a class's number for 'dog', got"),
        ({"dog": -1, "cat": 0}, ValueError, "class_map: expected a class's number for 'dog', got"),
        ("nowhere.json", ValueError, "class_map: nowhere.json cannot be read"),
        ("broken.json", ValueError, "class_map: broken.json cannot be read"),
        ("five.json", ValueError, "class_map: five.json: expected folders and numbers, got 5"),
    ],
)
def test_class_maps_that_do_not_fit(folder, tmp_path, monkeypatch, class_map, error, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "broken.json", "{")
    write(tmp_path / "five.json", "5")
    with pytest.raises(error, match=message):
        load_folder(folder, class_map=class_map)
