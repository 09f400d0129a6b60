"""The formula for the published protocol agrees with what its code was counted to do."""

from __future__ import annotations

import pytest

from cpr_wrap.meter import Passes
from examples.benchmark.published import published_passes


@pytest.mark.parametrize(
    ("steps", "total"),
    [(20, (2_933_536, 2_580_730)), (10, (1_787_226, 1_434_420))],
    ids=["MNIST", "CIFAR-10"],
)
def test_the_whole_protocol(steps, total):
    passes = sum(published_passes(steps).values(), Passes())
    assert (passes.forwards, passes.backwards) == total


def test_every_attack_on_mnist():
    counted = {
        "AutoAttack": (7_888, 1_930),
        "HCMOA": (27_342, 27_060),
        "CHCMOA": (681_822, 599_460),
        "LCIA": (33_444, 33_000),
        "CLCIA": (818_820, 719_880),
        "PDIA": (1_364_220, 1_199_400),
    }
    found = published_passes(20)
    assert {name: (p.forwards, p.backwards) for name, p in found.items()} == counted
