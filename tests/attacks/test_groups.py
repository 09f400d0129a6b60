"""Random starts belong to an image, wherever it stands."""

from __future__ import annotations

import pytest
import torch

from cpr_wrap.attacks.autoattack import AutoAttackOnBase
from cpr_wrap.attacks.guests import Group
from cpr_wrap.rules import Confidence
from cpr_wrap.selective import SelectiveClassifier
from tests.toys import Curved, pixels


def group(count=6, seed=0, norm="Linf"):
    model = SelectiveClassifier(Curved(4), Confidence(threshold=0.7))
    index = torch.arange(count) + 100
    return Group(model, pixels(count), torch.arange(count) % 4, index, 0.1, norm, seed)


def test_a_start_belongs_to_an_image_wherever_it_stands():
    some = group()
    rows = torch.tensor([4, 0, 5])
    whole = some.start(some.x, "apgd-ce", 0)
    assert torch.equal(some.take(rows).start(some.x[rows], "apgd-ce", 0), whole[rows])


def test_every_turn_seed_and_component_has_starts_of_its_own():
    some = group()
    first = some.start(some.x, "apgd-ce", 0)
    for other in (
        some.start(some.x, "apgd-ce", 1),
        some.start(some.x, "apgd-t", 0),
        group(seed=1).start(some.x, "apgd-ce", 0),
    ):
        assert not torch.isclose(other, first).any()


def test_what_an_attack_is_not_told_is_named_as_its_caller_knows_it():
    some = group()
    with pytest.raises(TypeError, match=r"perturb\(\) missing 2 required .* 'seed' and 'index'"):
        AutoAttackOnBase().perturb(some.model, some.x, some.y, 0.1, norm="Linf")
