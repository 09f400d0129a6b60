from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from cpr_wrap.report.png import data_uri, png


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("channels", [1, 3])
def test_another_decoder_reads_the_same_levels(channels):
    levels = torch.randint(0, 256, (channels, 5, 7))
    read = decoded(png(levels / 255))
    expected = levels.permute(1, 2, 0).squeeze(2) if channels == 1 else levels.permute(1, 2, 0)
    assert np.array_equal(read, expected.numpy())


def test_values_outside_are_cut():
    read = decoded(png(torch.tensor([[[-0.5, 0.5, 1.5]]])))
    assert read.tolist() == [[0, 128, 255]]


@pytest.mark.parametrize("shape", [(2, 4, 4), (4, 4), (1, 0, 4)])
def test_only_grey_and_colour_images(shape):
    with pytest.raises(ValueError, match="one image"):
        png(torch.zeros(shape))


def test_large_images_are_shrunk_by_a_whole_factor():
    image = torch.zeros(3, 224, 200)
    image[:, :, :100] = 1
    head, data = data_uri(image).split(",")
    assert head == "data:image/png;base64"
    read = decoded(base64.b64decode(data))
    assert read.shape == (112, 100, 3)
    assert read[:, :50].min() == 255
    assert read[:, 50:].max() == 0
    assert decoded(base64.b64decode(data_uri(image, longest=224).split(",")[1])).shape[0] == 224
