"""CPR on a real network and real images, against a naive Algorithm 1, image by image."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cpr_wrap import CPRWrapper
from tests.real import cifar10_test, foolbox_cifar10, resnet18


@pytest.fixture(scope="module")
def network():
    return resnet18()


def naive_accepts(network, x, radius, steps, step_size):
    """Algorithm 1 of the paper, read aloud."""
    predicted = network(x).argmax(1)
    z = x
    for _ in range(steps):
        z = z.detach().requires_grad_()
        loss = nn.functional.cross_entropy(network(z), predicted, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, z)
        z = z.detach() + step_size * gradient.sign()
        z = torch.min(torch.max(z, x - radius), x + radius).clamp(0, 1)
    return (network(z.detach()).argmax(1) == predicted).tolist()


def check(network, x, y, least_right, **settings):
    selection = CPRWrapper(network, **settings)(x)
    assert (selection.predicted == y).double().mean() >= least_right
    assert selection.accepted.tolist() == naive_accepts(network, x, **settings)
    return selection.accepted


@pytest.mark.integration
def test_eight_cifar10_images(network):
    x, y = (part[:8] for part in foolbox_cifar10())
    # The paper's radius, with fewer and longer steps to save time.
    accepted = check(network, x, y, 1.0, radius=0.0055, steps=3, step_size=0.0025)
    assert 0 < accepted.sum() < len(x)


@pytest.mark.slow
def test_a_hundred_cifar10_images(network):
    data = cifar10_test(100)
    if data is None:
        pytest.skip("CPR_WRAP_DATA has no cifar10_test.npz")
    accepted = check(network, *data, 0.9, radius=0.0055, steps=10, step_size=0.001)
    assert 0 < accepted.sum() < 100
