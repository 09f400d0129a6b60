"""Images that a package passes around are recognized, in any part and any order."""

from __future__ import annotations

import torch

from cpr_wrap.attacks.adapters import GoalLogits
from cpr_wrap.attacks.guests import Group, Recognized
from cpr_wrap.rules import Confidence
from cpr_wrap.selective import SelectiveClassifier
from tests.toys import Curved, pixels


def group(count=6, seed=0, norm="Linf"):
    model = SelectiveClassifier(Curved(4), Confidence(threshold=0.7))
    index = torch.arange(count) + 100
    return Group(model, pixels(count), torch.arange(count) % 4, index, 0.1, norm, seed)


def starts(of, x, name="apgd-ce", calls=1):
    """The first point of the last of several climbs on some images."""
    seen = []
    climb = of.climb(lambda x, y, x_init: seen.append(x_init), name, torch.nn.Identity())
    for _ in range(calls):
        climb(x, None)
    return seen[-1]


def test_images_are_recognized_in_single_precision():
    some = group()
    rows = torch.tensor([4, 0, 5])
    assert torch.equal(some.recognize(some.x[rows].float()), rows)
    assert torch.equal(some.take(rows).recognize(some.x[rows]), torch.arange(3))


def test_a_start_belongs_to_an_image_wherever_it_stands():
    some = group()
    rows = torch.tensor([4, 0, 5])
    whole = starts(some, some.x)
    assert torch.equal(starts(some, some.x[rows]), whole[rows])
    assert torch.equal(starts(some.take(rows), some.x[rows]), whole[rows])


def test_every_climb_seed_and_component_has_starts_of_its_own():
    some = group()
    first = starts(some, some.x)
    for other in (
        starts(some, some.x, calls=2),
        starts(some, some.x, "apgd-t"),
        starts(group(seed=1), some.x),
    ):
        assert not torch.isclose(other, first).any()


def test_a_start_that_is_given_is_kept():
    some, seen = group(), []
    climb = some.climb(lambda x, y, x_init: seen.append(x_init), "apgd-ce", torch.nn.Identity())
    climb(some.x, some.y, some.x + 1)
    assert torch.equal(seen[0], some.x + 1)


def test_a_view_of_several_classes_knows_images_by_their_looks_and_points_by_their_climb():
    some = group()
    view = Recognized(some)
    rows = torch.tensor([3, 1])
    expected = GoalLogits(some.model, some.y[rows])(some.x[rows])
    assert torch.equal(view(some.x[rows]), expected)
    moved = some.x[rows] + 0.05
    with view.aware(some.y[rows]):
        assert torch.equal(view(moved), GoalLogits(some.model, some.y[rows])(moved))
    assert torch.equal(view(some.x[rows]), expected)
