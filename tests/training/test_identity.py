"""Nobody resumes somebody else's training."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from cpr_wrap.data import FolderImages, load_folder
from cpr_wrap.training import train
from cpr_wrap.training.checkpoint import network_identity
from tests.training.making import SIZE, assert_same, quick_recipe, stripes, weights

X, Y = stripes(72)
HELD_OUT = stripes(30, seed=1)
RECIPE = quick_recipe("standard", epochs=1)


def bent(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 8), activation(), nn.Linear(8, 3))


class Scaled(nn.Module):
    """A network with a setting that its repr does not show."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.network = bent()
        self.scale = scale

    def forward(self, x):
        return self.network(x) * self.scale


def begin(out, data=(X, Y), network=None, **settings):
    network = bent() if network is None else network
    return train(RECIPE, data, network=network, out=out, progress=False, **settings)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": (1 - X, Y)}, "images"),
        ({"data": (X, (Y + 1) % 3)}, "images"),
        ({"data": (X[:-3], Y[:-3])}, "images"),
        ({"network": bent(nn.Tanh)}, "network"),
        ({"network": Scaled()}, "network"),
        ({"amp": True}, "amp"),
        ({"validation": (1 - HELD_OUT[0], HELD_OUT[1])}, "validation images"),
    ],
    ids=["pixels", "labels", "count", "activation", "class", "amp", "validation"],
)
def test_another_training_in_the_same_folder_is_refused(tmp_path, change, named):
    begin(tmp_path, validation=HELD_OUT)
    message = rf"another training \(other {named}\); choose another folder, or .*resume=False"
    with pytest.raises(ValueError, match=message):
        begin(tmp_path, **{"validation": HELD_OUT, **change})


def test_one_pixel_among_many_images_is_seen(tmp_path):
    begin(tmp_path)
    x = X.clone()
    x[1, 0, 0, 0] += 0.01  # not among the sample that lazily read images are known by
    with pytest.raises(ValueError, match="other images"):
        begin(tmp_path, (x, Y))


def test_settings_of_ones_own_modules_count(tmp_path):
    begin(tmp_path, network=Scaled())
    begin(tmp_path, network=Scaled())
    with pytest.raises(ValueError, match="other network"):
        begin(tmp_path, network=Scaled(2.0))


class Holds(nn.Module):
    """A network that holds something which is no weight and which its repr does not show."""

    def __init__(self, thing, buffer=0.0):
        super().__init__()
        self.layer, self.thing = nn.Linear(2, 2), thing
        self.register_buffer("mean", torch.tensor(buffer), persistent=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tanh, torch.relu),
        (torch.zeros(2), torch.ones(2)),
        (np.zeros(2), np.ones(2)),
        ({"scale": 1.0}, {"scale": 2.0}),
        ([torch.zeros(2)], [torch.ones(2)]),
        (functools.partial(bent, nn.ReLU), functools.partial(bent, nn.Tanh)),
    ],
)
def test_whatever_a_network_holds_counts(one, other):
    assert network_identity(Holds(one)) == network_identity(Holds(one))
    assert network_identity(Holds(one)) != network_identity(Holds(other))


def test_buffers_that_are_not_saved_count():
    assert network_identity(Holds(0, 0.5)) == network_identity(Holds(0, 0.5))
    assert network_identity(Holds(0, 0.5)) != network_identity(Holds(0, 0.25))


def test_validation_images_may_come_later(tmp_path):
    first = begin(tmp_path)
    again = begin(tmp_path, validation=HELD_OUT)
    assert_same(weights(first.network), weights(again.network))


def test_code_counts_and_comments_do_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n"
    bodies = {
        "one": "        return x.relu()\n",
        "two": "        # as in the paper\n        return (x .relu())\n",
        "three": "        return x.tanh()\n",
    }
    found = {}
    for name, body in bodies.items():
        (tmp_path / f"net_{name}.py").write_text(code + body)
        found[name] = network_identity(__import__(f"net_{name}").Net())
    assert found["one"] == found["two"] != found["three"]


def test_a_class_without_source_is_known_by_its_name():
    Net = type("Net", (nn.Identity,), {})
    assert network_identity(Net()) == network_identity(Net()) != network_identity(nn.Identity())


def test_addresses_in_memory_do_not_count():
    class Shown(nn.Module):
        def extra_repr(self):
            return repr(object())

    assert network_identity(Shown()) == network_identity(Shown())


class Drawn(Dataset):
    """Images that are changed at random whenever they are read."""

    classes = ("top", "middle", "bottom")

    def __init__(self, y=Y):
        self.y = y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return X[index] * torch.rand(()), self.y[index]


def test_a_data_set_that_draws_at_random_is_known_by_its_labels(tmp_path):
    begin(tmp_path, Drawn())
    begin(tmp_path, Drawn())
    with pytest.raises(ValueError, match="other images"):
        begin(tmp_path, Drawn((Y + 1) % 3))


@pytest.fixture
def folder(tmp_path):
    for number in range(40):
        file = tmp_path / "images" / f"class{number % 3}" / f"{number:02d}.bmp"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (SIZE, SIZE), 6 * number).save(file)
    return tmp_path / "images"


def test_images_read_one_by_one_or_all_at_once_are_the_same_images(folder, tmp_path):
    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 3))

    first = begin(tmp_path / "out", FolderImages(folder), network())
    again = begin(tmp_path / "out", load_folder(folder), network())
    assert_same(weights(first.network), weights(again.network))
    # A file that is not in the sample changes its length, another one its name.
    Image.new("RGB", (SIZE, SIZE), (9, 9, 9)).save(folder / "class1" / "01.bmp")
    with pytest.raises(ValueError, match="other images"):
        begin(tmp_path / "out", FolderImages(folder), network())
