from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cpr_wrap import _checks

GOOD = torch.full((2, 1, 2, 2), 0.5)


def with_pixel(value):
    x = GOOD.clone()
    x[1, 0, 1, 1] = value
    return x


@pytest.mark.parametrize("pixel", [0.0, 1.0, -1e-6, 1 + 1e-6])
def test_pixels_in_range_pass(pixel):
    _checks.check_images(with_pixel(pixel))


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        ([[0.5]], TypeError, "x: expected a torch.Tensor of images, got list"),
        ((GOOD * 255).byte(), TypeError, r"got torch.uint8; convert with x.float\(\) / 255"),
        (torch.rand(4), ValueError, r"expected a batch .* got shape \(4,\); add a batch"),
        (GOOD[:0], ValueError, r"at least one image, got shape \(0, 1, 2, 2\)"),
        (with_pixel(math.nan), ValueError, "finite pixels, got NaN or infinity"),
        (with_pixel(math.inf), ValueError, "finite pixels, got NaN or infinity"),
        (with_pixel(-0.5), ValueError, r"pixels in \[0, 1\], got \[-0.5, 0.5\]. If the images"),
        (GOOD * 255, ValueError, r"pixels in \[0, 1\], got \[127.5, 127.5\]"),
    ],
)
def test_bad_images_are_named(x, error, text):
    with pytest.raises(error, match=text):
        _checks.check_images(x)


def test_checks_name_the_argument():
    with pytest.raises(TypeError, match="x_val: expected"):
        _checks.check_images(None, "x_val")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_of_any_integer_type_pass(dtype):
    _checks.check_labels(torch.tensor([0, 2], dtype=dtype), 2, 3)


@pytest.mark.parametrize(
    ("y", "error", "text"),
    [
        ([0, 1], TypeError, "y: expected a torch.Tensor of labels, got list"),
        (torch.tensor([0.0, 1.0]), TypeError, "expected integer labels, got torch.float32"),
        (torch.tensor([True, False]), TypeError, "expected integer labels, got torch.bool"),
        (torch.tensor([0]), ValueError, r"each of the 2 images, .* got shape \(1,\)"),
        (torch.tensor([[0], [1]]), ValueError, r"got shape \(2, 1\)"),
        (torch.tensor([0, 3]), ValueError, "labels from 0 to 2, got labels from 0 to 3"),
        (torch.tensor([-1, 0]), ValueError, "labels from 0 to 2, got labels from -1 to 0"),
    ],
)
def test_bad_labels_are_named(y, error, text):
    with pytest.raises(error, match=text):
        _checks.check_labels(y, 2, 3)


def test_labels_without_a_known_number_of_classes():
    _checks.check_labels(torch.tensor([0, 999]), 2)
    with pytest.raises(ValueError, match="expected labels from 0, got labels from -5 to 1"):
        _checks.check_labels(torch.tensor([-5, 1]), 2)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_not_positive(value):
    with pytest.raises(ValueError, match="radius: expected a finite number above 0, got"):
        _checks.check_positive(value, "radius")


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_not_a_budget(value):
    with pytest.raises(ValueError, match="eps: expected a finite number of at least 0, got"):
        _checks.check_eps(value)


@pytest.mark.parametrize("value", [0, 1, -0.5, math.nan])
def test_not_a_share(value):
    with pytest.raises(ValueError, match="rate: expected a number between 0 and 1, got"):
        _checks.check_share(value, "rate")


def test_numbers_in_range_pass():
    _checks.check_positive(1e-9, "radius")
    _checks.check_eps(0)
    _checks.check_share(0.01, "rate")


def test_training_mode_is_found_in_a_submodule():
    net = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    with pytest.raises(ValueError, match=r"but it is in training mode; call \.eval"):
        _checks.check_eval_mode(net)
    net.eval()
    _checks.check_eval_mode(net)
    net[1].train()
    with pytest.raises(ValueError, match="its submodule '1' is in training mode"):
        _checks.check_eval_mode(net)


def test_missing_extra_says_how_to_get_it():
    with pytest.raises(
        ModuleNotFoundError, match=r"nowhere is not .* pip install 'cpr-wrap\[far\]'"
    ):
        _checks.import_extra("nowhere", "far")
    with pytest.raises(ModuleNotFoundError, match="nowhere is not installed; pip install nowhere"):
        _checks.import_extra("nowhere.deep")


def test_present_extra_is_returned():
    assert _checks.import_extra("math") is math


def test_missing_dependency_of_an_extra_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere_at_all'"):
        _checks.import_extra("half_there", "far")
