from __future__ import annotations

import pytest

from cpr_wrap.evaluation import robustness_curve
from tests.evaluation.test_curve import make


@pytest.fixture(scope="session")
def standard():
    """A model with CPR, images, labels, and what the default budget finds at eps 0.1."""
    model, x, y = make("cpr")
    return model, x, y, robustness_curve(model, x, y, 0.1)
