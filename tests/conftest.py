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


@pytest.fixture(autouse=True)
def _fixed_state():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
