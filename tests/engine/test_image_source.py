"""Data sets that are no fixed list of images and class numbers."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from cpr_wrap.engine.images import source_of


class _Pairs(Dataset):
    def __init__(self, label=1, shaky=None):
        self.label, self.shaky, self.reads = label, shaky, 0

    def __len__(self):
        return 12

    def __getitem__(self, number):
        self.reads += 1
        other = self.reads / 1000 if number == self.shaky else 0
        return torch.full((1, 2, 2), number / 20 + other), self.label


def test_a_fixed_data_set_is_taken():
    assert len(source_of(_Pairs(), None, None)) == 12


@pytest.mark.parametrize("number", [0, 5])
def test_an_image_that_changes_is_found_though_the_first_does_not(number):
    with pytest.raises(ValueError, match=f"image {number} differs when it is read again"):
        source_of(_Pairs(shaky=number), None, None)


@pytest.mark.parametrize("label", [1.0, True, -1, torch.tensor(2.5)])
def test_labels_are_class_numbers(label):
    with pytest.raises((TypeError, ValueError), match=r"image 0: expected (labels|integer)"):
        source_of(_Pairs(label=label), None, None)
