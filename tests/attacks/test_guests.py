"""Other packages may seed, draw and print; afterwards nothing shows it."""

from __future__ import annotations

import logging
import random
import warnings

import numpy as np
import pytest
import torch

from cpr_wrap.attacks.guests import batch_seed, guest, quiet, random_state
from tests.toys import Line


def draw():
    """A number from each global generator."""
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def states():
    numeric = np.random.get_state()
    return torch.get_rng_state().tolist(), numeric[1].tolist(), numeric[2], random.getstate()


def test_random_state_gives_every_generator_back():
    draw()
    before = states()
    with random_state(1):
        first = draw()
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
    assert states() == before
    with random_state(1):
        assert draw() == first
    with random_state(2):
        assert draw() != first
    assert states() == before


def test_random_state_gives_back_after_an_error():
    before = states()

    def fail():
        draw()
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), random_state(1):
        fail()
    assert states() == before


def test_a_batch_has_the_same_seed_whenever_it_comes_together():
    index = torch.tensor([4, 9, 2])
    assert batch_seed(0, index) == batch_seed(0, index.clone())
    assert batch_seed(0, index) != batch_seed(1, index)
    assert batch_seed(0, index) != batch_seed(0, index[:2])
    assert 0 <= batch_seed(-1, index) < 2**31


def speak():
    print("printed")
    warnings.warn("warned", stacklevel=1)
    logging.getLogger("a guest").warning("logged")


def test_quiet_holds_back_prints_warnings_and_logs(capsys, caplog, recwarn):
    with quiet("a guest", verbose=False):
        speak()
    assert capsys.readouterr().out == ""
    assert not caplog.records
    assert not recwarn.list


def test_afterwards_and_when_verbose_everything_is_heard(capsys, caplog):
    with quiet("a guest", verbose=False):
        pass
    for verbose in (True, False):
        with quiet("a guest", verbose=True) if verbose else random_state(0):
            with pytest.warns(UserWarning, match="warned"):
                speak()
            assert capsys.readouterr().out == "printed\n"
            assert [record.message for record in caplog.records] == ["logged"]
            caplog.clear()


def test_a_guest_leaves_no_gradient_in_the_network():
    network = Line()
    with guest(network, 0, logger="a guest"):
        z = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True)
        network(z).sum().backward()
    assert z.grad is not None
    assert all(p.grad is None and p.requires_grad for p in network.parameters())


def test_a_guest_can_differentiate_where_the_caller_cannot():
    network = Line()
    with torch.inference_mode(), guest(network, 0, logger="a guest"), torch.enable_grad():
        z = torch.ones(2, requires_grad=True)
        z.sum().backward()
        assert z.grad is not None
