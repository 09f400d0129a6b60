"""Which donors a restart looks at."""

from __future__ import annotations

import torch

from cpr_wrap.attacks.donors import Donors, nearest
from cpr_wrap.evaluation.supplied import known_donors
from cpr_wrap.geometry import LINF
from cpr_wrap.zoo import load


def test_most_restarts_look_at_the_first_of_each_class_and_wide_ones_at_all():
    x = torch.zeros(1, 1, 1, 1)
    images = torch.tensor([0.9, 0.8, 0.5, 0.7, 0.6]).view(5, 1, 1, 1)
    donors = Donors(images, torch.tensor([1, 1, 1, 2, 2]), first=2)
    target = torch.tensor([[1, 2]])
    some, there = nearest(x, target, donors, 0.1, LINF, 3, wide=False)
    assert some[0, 0, :2].tolist() == [1, 0]
    assert there[0].tolist() == [[True, True, False], [True, True, False]]
    every, _ = nearest(x, target, donors, 0.1, LINF, 3)
    assert every[0, 0].tolist() == [2, 1, 0]
    assert donors.key != Donors(images, donors.labels).key
    assert donors.to(x).first == 2


def test_audits_have_donors_of_their_own():
    model = load("bundled:mnist-compact-at", rule="none")
    shape = torch.Size((1, 28, 28))
    used = known_donors(model, shape, 10)
    unused = known_donors(model, shape, 10, unused=True)
    assert used is not None
    assert unused is not None
    assert (len(used.labels), used.first, len(unused.labels)) == (4_000, 100, 1_000)
    assert torch.cdist(used.images.flatten(1), unused.images.flatten(1)).min() > 0
