"""Every test starts from the same random state, on one thread."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import settings

# Derandomised: a failure in CI is a failure at home. No deadline: the cores may be busy.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("fixed")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """Whole commands, processes and browsers take too long for the tests of every change."""
    for item in items:
        if item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _fixed_state():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
