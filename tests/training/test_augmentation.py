from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cpr_wrap import noise
from cpr_wrap.training.data import AUGMENTATIONS, crop_flip, pad_or_contrast

KEYS = noise.keys(0, torch.arange(400))


def gradient_image(count: int, size: int = 8) -> torch.Tensor:
    """Every pixel of the image has its own value."""
    values = torch.arange(1, size * size + 1) / (size * size)
    return values.view(1, 1, size, size).expand(count, 2, size, size)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_shape_range_and_type_are_kept_and_the_key_decides(name):
    x = torch.rand(20, 3, 8, 8)
    before = x.clone()
    first = AUGMENTATIONS[name](x, KEYS[:20])
    assert first.shape == x.shape
    assert first.dtype == x.dtype
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(x, before)
    # not the batch it is in, nor the caller's random state
    torch.manual_seed(8)
    assert torch.allclose(AUGMENTATIONS[name](x[5:], KEYS[5:20]), first[5:], atol=1e-6)
    if name != "none":
        assert not torch.equal(AUGMENTATIONS[name](x, KEYS[20:40]), first)


def test_crop_flip_gives_every_shift_and_mirror_image_and_nothing_else():
    x = gradient_image(400)
    padded = F.pad(x[:1], (4, 4, 4, 4))
    seen = set()
    for image in crop_flip(x, KEYS):
        matches = [
            (top, left, mirrored)
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
            for crop in [padded[0, :, top : top + 8, left : left + 8]]
            if torch.equal(image, crop.flip(2) if mirrored else crop)
        ]
        assert len(matches) == 1
        seen.update(matches)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))
    share = sum(mirrored for _, _, mirrored in seen) / len(seen)
    assert 0.4 < share < 0.6


def test_pad_or_contrast_does_exactly_one_of_both():
    x = gradient_image(400) * 0.5 + 0.25
    out = pad_or_contrast(x, KEYS)
    # a change of contrast is linear in the pixel, around mid-gray
    flat = (x[:, 0].flatten(1) - 0.5)[0]
    factor = (out[:, 0].flatten(1) - 0.5) @ flat / (flat @ flat)
    residue = (out[:, 0].flatten(1) - 0.5 - factor[:, None] * flat).abs().amax(dim=1)
    contrasted = residue < 1e-5
    assert 0.4 < contrasted.float().mean() < 0.6
    assert 0.7 <= factor[contrasted].min() < 0.75
    assert 1.25 < factor[contrasted].max() <= 1.3
    # padding repeats the edge: no pixel darker or brighter than in the image
    framed = out[~contrasted]
    assert framed.min() >= x.min() - 1e-6
    assert framed.max() <= x.max() + 1e-6


def test_padding_moves_the_picture_towards_the_side_with_less_frame():
    """A single bright column in the middle is found where the frame puts it."""
    x = torch.zeros(200, 1, 40, 40)
    x[:, :, :, 20:] = 1
    out = pad_or_contrast(x, KEYS[:200])
    draws = noise.uniform(KEYS[:200], 6)
    left, right = draws[:, 0] * 0.2, draws[:, 1] * 0.2
    framed = draws[:, 5] < 0.5
    # share of the picture left of the edge: the frame on the left and half of the image
    expected = (left + 0.5) / (1 + left + right)
    found = 1 - out[:, 0, 20].mean(dim=1)
    assert torch.allclose(found[framed].double(), expected[framed], atol=0.02)
