"""RobustBench imported once, with real weights where it looks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real import folder_of

# An entry of RobustBench whose architecture is the ResNet-18 that pyautoattack brings weights for.
RESNET18 = "Addepalli2021Towards_RN18"
WEIGHTS = folder_of("pyautoattack") / "examples" / "model_test.pt"


@pytest.fixture(scope="session")
def robustbench():
    """RobustBench, imported by our loader; it takes its time."""
    from cpr_wrap.zoo.robustbench import import_robustbench

    return import_robustbench()


@pytest.fixture(scope="session")
def model_dir(robustbench, tmp_path_factory) -> Path:
    """A model directory of RobustBench in which one checkpoint lies already."""
    root = tmp_path_factory.mktemp("models")
    target = root / "cifar10" / "Linf" / f"{RESNET18}.pt"
    target.parent.mkdir(parents=True)
    target.symlink_to(WEIGHTS)
    return root
