"""Where images are looked for, and how a test set is divided."""

from __future__ import annotations

import os
import pickle
import struct
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_wrap.data import DATASETS, PARTS, load_data, paper_split
from cpr_wrap.data.datasets import _BUNDLED

REAL = os.environ.get("CPR_WRAP_DATA")


@pytest.fixture(autouse=True)
def _no_outside_data(monkeypatch, tmp_path):
    monkeypatch.delenv("CPR_WRAP_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def stored(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images that carry their number in their first pixel."""
    channels, height, width = DATASETS[name].shape
    shape = (count, height, width) if channels == 1 else (count, height, width, channels)
    images = np.zeros(shape, dtype=np.uint8)
    images.reshape(count, -1)[:, 0] = np.arange(count) % 256
    return images, (np.arange(count) % 10).astype(np.uint8)


def write_npz(folder: Path, name: str, count: int, half: str = "test") -> None:
    images, labels = stored(name, count)
    np.savez(folder / f"{name}_{half}.npz", images=images, labels=labels)


# The split


def test_the_papers_split_of_ten_thousand():
    assert paper_split("clean", 10_000) == range(9_000)
    assert paper_split("robust", 10_000) == range(1_000)
    assert paper_split("validation", 10_000) == range(9_000, 10_000)


def test_images_beyond_ten_thousand_are_not_used():
    for part in ("clean", "robust", "validation"):
        assert paper_split(part, 26_032) == paper_split(part, 10_000)


@pytest.mark.parametrize("count", [2, 3, 9, 10, 11, 949, 9_999])
def test_fewer_images_are_divided_in_proportion(count):
    clean, robust, validation = (paper_split(p, count) for p in ("clean", "robust", "validation"))
    assert [*clean, *validation] == list(range(count))
    assert robust.start == 0
    assert len(robust) == len(validation)
    assert abs(len(robust) - count / 10) <= 1


def test_a_split_needs_two_images():
    with pytest.raises(ValueError, match=r"at least 2 test images.*got 1"):
        paper_split("clean", 1)


# Files


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_reads_its_npz(name, tmp_path):
    write_npz(tmp_path, name, 40)
    with pytest.warns(UserWarning, match="has 40 test images.*same proportions"):
        data = load_data(name, "validation", data_dir=tmp_path)
    assert data.images.shape == (4, *DATASETS[name].shape)
    assert data.indices.tolist() == [36, 37, 38, 39]
    assert data.labels.tolist() == [6, 7, 8, 9]
    assert data.labels.dtype == data.indices.dtype == torch.int64
    # Each image says its own number, in 255ths, and is dark elsewhere.
    assert torch.equal(data.images[:, 0, 0, 0], torch.tensor([36.0, 37, 38, 39]) / 255)
    assert torch.equal(data.images.sum(dim=(1, 2, 3)), data.images[:, 0, 0, 0])
    assert "same proportions" in data.note
    assert (data.name, data.part, data.num_classes, len(data)) == (name, "validation", 10, 4)


def test_colours_stay_with_their_pixels(tmp_path):
    images, labels = stored("cifar10", 20)
    images[:, 3, 5] = (51, 102, 255)  # row 3, column 5
    np.savez(tmp_path / "cifar10_test.npz", images=images, labels=labels)
    with pytest.warns(UserWarning, match="proportions"):
        data = load_data("cifar10", "robust", data_dir=tmp_path)
    assert torch.allclose(data.images[0, :, 3, 5], torch.tensor([0.2, 0.4, 1.0]))


def test_whole_file_with_both_halves(tmp_path):
    train, test = stored("mnist", 7), stored("mnist", 20)
    np.savez(
        tmp_path / "mnist.npz",
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
    )
    assert len(load_data("mnist", "train", data_dir=tmp_path)) == 7
    with pytest.warns(UserWarning, match="proportions"):
        assert len(load_data("mnist", "clean", data_dir=tmp_path)) == 18


def test_ten_thousand_images_need_no_note(tmp_path, recwarn):
    write_npz(tmp_path, "mnist", 10_050)
    data = load_data("mnist", "validation", data_dir=tmp_path)
    assert data.note == ""
    assert not recwarn.list
    assert data.indices[[0, -1]].tolist() == [9_000, 9_999]


def test_environment_names_the_folder_and_data_dir_goes_first(tmp_path, monkeypatch):
    for folder, count in (("a", 3), ("b", 5)):
        (tmp_path / folder).mkdir()
        write_npz(tmp_path / folder, "cifar10", count, half="train")
    monkeypatch.setenv("CPR_WRAP_DATA", str(tmp_path / "a"))
    assert len(load_data("cifar10", "train")) == 3
    assert len(load_data("cifar10", "train", data_dir=tmp_path / "b")) == 5


def test_num_keeps_the_first(tmp_path):
    write_npz(tmp_path, "svhn", 30, half="train")
    assert load_data("svhn", "train", data_dir=tmp_path, num=4).indices.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("num", [0, 31])
def test_num_out_of_range(tmp_path, num):
    write_npz(tmp_path, "svhn", 30, half="train")
    with pytest.raises(ValueError, match=f"num: expected 1 to 30.*got {num}"):
        load_data("svhn", "train", data_dir=tmp_path, num=num)


# Any part of a data set


def test_all_test_images_can_be_reached(tmp_path):
    write_npz(tmp_path, "mnist", 10_050)
    assert len(load_data("mnist", "test", tmp_path)) == 10_050
    some = load_data("mnist", "test", tmp_path, start=10_020, num=5)
    assert some.indices.tolist() == list(range(10_020, 10_025))
    assert some.labels.tolist() == [0, 1, 2, 3, 4]
    chosen = load_data("mnist", "test", tmp_path, indices=torch.tensor([9_003, 7, 1_000]))
    assert chosen.indices.tolist() == [9_003, 7, 1_000]
    assert chosen.labels.tolist() == [3, 7, 0]
    again = load_data("mnist", "test", tmp_path, indices=some.indices)
    assert torch.equal(again.images, some.images)


def test_numbers_are_those_of_the_whole_set_in_every_part(tmp_path):
    write_npz(tmp_path, "mnist", 10_000)
    data = load_data("mnist", "validation", tmp_path, start=9_500, num=2)
    assert data.indices.tolist() == [9_500, 9_501]
    assert load_data("mnist", "validation", tmp_path, indices=[9_999]).labels.tolist() == [9]
    with pytest.raises(ValueError, match=r"in mnist's part 'robust', which are 0 to 999, got 1000"):
        load_data("mnist", "robust", tmp_path, indices=[5, 1_000])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"start": -1}, "start: expected 0 to 29, the numbers in svhn's part 'train', got -1"),
        ({"start": 30}, "start: expected 0 to 29, .* got 30"),
        ({"start": 28, "num": 3}, "num: expected 1 to 2, .* got 3"),
        ({"indices": [1, 30, -1]}, "indices: expected numbers of images in .* got 30, -1"),
        ({"indices": [1, 1]}, "indices: expected each number once"),
        ({"indices": []}, "indices: expected a list of whole numbers"),
        ({"indices": [0.5]}, "indices: expected a list of whole numbers, got float64"),
        ({"indices": [[1, 2]]}, r"indices: expected a list of whole numbers, got int64 \(1, 2\)"),
        ({"indices": [1], "num": 1}, "indices: expected without num and start"),
    ],
)
def test_choices_that_cannot_be(tmp_path, choice, message):
    write_npz(tmp_path, "svhn", 30, half="train")
    with pytest.raises(ValueError, match=message):
        load_data("svhn", "train", tmp_path, **choice)


# The bundled part of MNIST


def test_bundled_test_images_by_their_numbers():
    data = load_data("mnist", "test", indices=[9_999, 3])
    assert data.indices.tolist() == [9_999, 3]
    assert "2000 that come with cpr-wrap" in data.note
    assert torch.equal(data.images[1], load_data("mnist", "robust", num=4).images[3])
    assert load_data("mnist", "test", start=990, num=20).indices[[9, 10]].tolist() == [999, 9_000]
    with pytest.raises(ValueError, match="which are 0 to 999 and 9000 to 9999, got 5000"):
        load_data("mnist", "test", indices=[5_000])


def test_bundled_parts():
    robust = load_data("mnist", "robust")
    validation = load_data("mnist", "validation")
    with pytest.warns(UserWarning, match="2000 that come .* the paper takes images 0 to 8999"):
        clean = load_data("mnist", "clean")
    assert robust.indices.tolist() == list(range(1_000))
    assert validation.indices.tolist() == list(range(9_000, 10_000))
    assert torch.equal(clean.images, robust.images)
    assert robust.note.endswith("come with cpr-wrap, part 'robust' is images 0 to 999")
    assert robust.images.shape == validation.images.shape == (1_000, 1, 28, 28)
    assert (robust.images.min(), robust.images.max()) == (0, 1)


def test_bundled_images_are_mnists():
    # The first ten labels of the test set, and its share of background, are well known.
    data = load_data("mnist", "robust")
    assert data.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert 0.75 < (data.images == 0).float().mean() < 0.85
    assert data.labels.bincount().min() > 80


def test_bundled_file_is_small():
    assert (_BUNDLED / "test_subset.npz").stat().st_size < 1_000_000


@pytest.mark.skipif(REAL is None, reason="CPR_WRAP_DATA is not set")
@pytest.mark.parametrize("part", ["robust", "validation"])
def test_bundled_images_equal_the_real_ones(part):
    if not (Path(REAL) / "mnist.npz").is_file():
        pytest.skip("no mnist.npz")
    bundled, real = load_data("mnist", part), load_data("mnist", part, data_dir=REAL)
    assert torch.equal(bundled.images, real.images)
    assert torch.equal(bundled.labels, real.labels)
    assert torch.equal(bundled.indices, real.indices)
    assert real.note == ""


# torchvision's folders


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


def test_torchvision_folder_of_mnist(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for half, count in (("train", 3), ("t10k", 20)):
        images, labels = stored("mnist", count)
        write_idx(raw / f"{half}-images-idx3-ubyte", images)
        write_idx(raw / f"{half}-labels-idx1-ubyte", labels)
    assert load_data("mnist", "train", data_dir=tmp_path).labels.tolist() == [0, 1, 2]
    with pytest.warns(UserWarning, match="proportions"):
        data = load_data("mnist", "validation", data_dir=tmp_path)
    assert data.indices.tolist() == [18, 19]
    assert torch.equal(data.images[:, 0, 0, 0], torch.tensor([18.0, 19]) / 255)


def test_torchvision_folder_of_cifar10(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10

    images, labels = stored("cifar10", 20)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    flat = images.transpose(0, 3, 1, 2).reshape(20, -1)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": flat, "labels": labels.tolist()}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("0123456789")}))
    sums = {file.name: md5(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    monkeypatch.setattr(CIFAR10, "train_list", [])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    with pytest.warns(UserWarning, match="proportions"):
        data = load_data("cifar10", "validation", data_dir=tmp_path)
    assert data.labels.tolist() == [8, 9]
    assert torch.equal(data.images[:, 0, 0, 0], torch.tensor([18.0, 19]) / 255)


def test_torchvision_file_of_svhn(tmp_path, monkeypatch):
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    images, labels = stored("svhn", 20)
    # The official files write the digit 0 as 10.
    y = np.where(labels == 0, 10, labels)[:, None]
    savemat(tmp_path / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": y})
    sums = md5((tmp_path / "test_32x32.mat").read_bytes()).hexdigest()
    monkeypatch.setattr(SVHN, "split_list", {"test": ["", "test_32x32.mat", sums]})
    with pytest.warns(UserWarning, match="proportions"):
        data = load_data("svhn", "clean", data_dir=tmp_path)
    assert data.labels[:11].tolist() == [*range(10), 0]
    assert torch.equal(data.images[:, 0, 0, 0], torch.arange(18.0) / 255)


def test_torchvision_folder_that_is_damaged(tmp_path):
    (tmp_path / "test_32x32.mat").write_bytes(b"half a file")
    with pytest.raises(RuntimeError, match=r"test_32x32.mat is there.*download it again"):
        load_data("svhn", "robust", data_dir=tmp_path)


def test_download_only_if_asked_and_a_failure_is_one_line(tmp_path, monkeypatch):
    from torchvision.datasets import SVHN

    def download(self):
        raise OSError("no route\nto host")

    monkeypatch.setattr(SVHN, "download", download)
    with pytest.raises(LookupError, match="no test images of svhn"):
        load_data("svhn", "robust", data_dir=tmp_path)
    with pytest.raises(RuntimeError, match=r"could not download SVHN \(no route to host\)") as info:
        load_data("svhn", "robust", data_dir=tmp_path / "new", download=True)
    message = str(info.value)
    assert "\n" not in message
    assert "housenumbers" in message
    assert str(tmp_path / "new" / "test_32x32.mat") in message


# Bad input


def test_unknown_data_set():
    with pytest.raises(LookupError, match=r"unknown data set 'mnits'. Did you mean 'mnist'"):
        load_data("mnits", "clean")


def test_unknown_part():
    with pytest.raises(ValueError, match=f"part: expected one of {', '.join(PARTS)}, got 'rest'"):
        load_data("mnist", "rest")


def test_nothing_found_says_where_it_looked(tmp_path):
    with pytest.raises(LookupError, match="no test images of cifar10") as info:
        load_data("cifar10", "clean", data_dir=tmp_path)
    message = str(info.value)
    for place in ("cifar10.npz", "cifar10_test.npz", "cifar-10-batches-py/test_batch"):
        assert str(tmp_path / place) in message
    assert "CPR_WRAP_DATA" in message
    assert "bundled" not in message


def test_bundled_mnist_has_no_training_images():
    with pytest.raises(LookupError, match="The bundled images are test images"):
        load_data("mnist", "train")


def test_a_folder_that_is_asked_for_must_exist(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"data_dir: expected a folder.*nowhere"):
        load_data("mnist", "robust", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("CPR_WRAP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"CPR_WRAP_DATA: expected a folder.*nowhere"):
        load_data("mnist", "robust")


def test_missing_key(tmp_path):
    images, _ = stored("cifar10", 3)
    np.savez(tmp_path / "cifar10_test.npz", images=images, y=[0, 1, 2])
    with pytest.raises(LookupError, match=r"expected the arrays 'images' and 'labels', got.*'y'"):
        load_data("cifar10", "robust", data_dir=tmp_path)


def test_labels_and_images_of_different_length(tmp_path):
    images, labels = stored("cifar10", 3)
    np.savez(tmp_path / "cifar10_test.npz", images=images, labels=labels[:2])
    with pytest.raises(ValueError, match=r"one integer label for each of the 3 images.*\(2,\)"):
        load_data("cifar10", "robust", data_dir=tmp_path)


def test_images_that_are_neither_bytes_nor_floats(tmp_path):
    images, labels = stored("cifar10", 3)
    np.savez(tmp_path / "cifar10_test.npz", images=images.astype(np.int32), labels=labels)
    with pytest.raises(ValueError, match=r"type uint8.*got int32 \(3, 32, 32, 3\)"):
        load_data("cifar10", "robust", data_dir=tmp_path)


def test_images_of_another_data_set_are_refused_before_they_are_read(tmp_path, monkeypatch):
    images, labels = stored("cifar10", 3)
    np.savez(tmp_path / "cifar10_test.npz", images=images[:, :, :, :2], labels=labels)
    with pytest.raises(ValueError, match=r"1 or 3 channels, first or last.*\(3, 32, 32, 2\)"):
        load_data("cifar10", "test", data_dir=tmp_path)


def test_a_file_that_promises_too_much_is_not_unpacked(tmp_path, monkeypatch):
    from cpr_wrap.data import own

    path = tmp_path / "mnist_train.npz"
    zeros = np.zeros((4_000, 28, 28), dtype=np.uint8)  # 3 MB in 3 kB
    np.savez_compressed(path, images=zeros, labels=np.zeros(4_000, dtype=np.uint8))
    assert len(load_data("mnist", "train", data_dir=tmp_path)) == 4_000
    monkeypatch.setattr(own, "_ALWAYS_ROOM", 2**20)

    def unpacked(*args):
        raise AssertionError("the array was read")

    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", unpacked)
    with pytest.raises(RuntimeError, match="promises 3,140,256 bytes, which is not plausible"):
        load_data("mnist", "train", data_dir=tmp_path)


def test_a_header_that_lies_is_refused(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in (("images", (10**9, 28, 28)), ("labels", (10**9,))):
            with archive.open(f"{name}.npy", "w") as member:
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_2_0(member, header)
    with pytest.raises(RuntimeError, match=r"own\.npz cannot be read as an \.npz file"):
        load_data(tmp_path / "own.npz")


def test_pickled_arrays_are_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "evil"),))

    np.savez(tmp_path / "own.npz", images=np.array([Evil()] * 2), labels=np.array([0, 1]))
    with pytest.raises((ValueError, RuntimeError), match=r"own\.npz"):
        load_data(tmp_path / "own.npz")
    assert not (tmp_path / "evil").exists()


def test_images_of_another_data_set(tmp_path):
    images, labels = stored("mnist", 20)
    np.savez(tmp_path / "cifar10_train.npz", images=images, labels=labels)
    with pytest.raises(ValueError, match=r"\(3, 32, 32\) as \(C, H, W\), got \(1, 28, 28\)"):
        load_data("cifar10", "train", data_dir=tmp_path)


def test_labels_out_of_range(tmp_path):
    images, labels = stored("svhn", 20)
    np.savez(tmp_path / "svhn_train.npz", images=images, labels=labels + 1)
    with pytest.raises(ValueError, match="labels from 0 to 9, got labels from 1 to 10"):
        load_data("svhn", "train", data_dir=tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a zip file", None, "an array"])
def test_damaged_npz(tmp_path, content):
    write_npz(tmp_path, "mnist", 200)
    path = tmp_path / "mnist_test.npz"
    if content == "an array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
        content = path.read_bytes()
    path.write_bytes(path.read_bytes()[:2_000] if content is None else content)
    with pytest.raises(RuntimeError, match=r"mnist_test.npz cannot be read.*again"):
        load_data("mnist", "robust", data_dir=tmp_path)
