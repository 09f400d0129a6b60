from __future__ import annotations

import pytest
import torch
from torch import nn

from cpr_wrap.networks import NETWORKS, TwoHeads, build_network

SIZE = {
    "lenet": (1, 28),
    "lenet-compact": (1, 28),
    "strided-compact": (1, 28),
    "resnet20": (3, 32),
    "resnet20-wide": (3, 32),
}


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "auxiliary", "parameters"),
    [
        ("lenet", False, 3_274_634),
        ("lenet", True, 3_537_803),
        ("resnet20-wide", False, 4_327_754),
        ("resnet20-wide", True, 4_394_315),
    ],
)
def test_sizes_are_the_published_ones(name, auxiliary, parameters):
    assert count(build_network(name, num_outputs=10 + auxiliary, auxiliary=auxiliary)) == parameters


def test_compact_sizes_follow_from_their_layers():
    convolutions = (25 + 1) * 16 + (25 * 16 + 1) * 32
    assert count(build_network("lenet-compact")) == convolutions + (32 * 49 + 1) * 256 + 257 * 10
    strided = (25 + 1) * 32 + (16 * 32 + 1) * 64
    assert count(build_network("strided-compact")) == strided + (64 * 49 + 1) * 128 + 129 * 10
    # 0.27 M weights, and 1x1 convolutions with batch norm where a stage changes its width
    shortcuts = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    assert count(build_network("resnet20")) == 269_722 + shortcuts


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("auxiliary", [False, True])
def test_outputs_have_the_columns_asked_for_and_every_weight_is_used(name, auxiliary):
    channels, size = SIZE[name]
    network = build_network(name, num_outputs=8, auxiliary=auxiliary)
    outputs = network(torch.rand(2, channels, size, size))
    assert outputs.shape == (2, 8)
    outputs.square().sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_input_gradient_is_alive_on_the_bounds_of_the_pixel_range(name):
    channels, size = SIZE[name]
    network = build_network(name).eval()
    x = torch.randint(0, 2, (2, channels, size, size)).float().requires_grad_()
    (grad,) = torch.autograd.grad(network(x)[:, 0].sum(), x)
    assert (grad != 0).float().mean() > 0.9


def test_auxiliary_logit_is_the_last_column_and_shares_the_trunk():
    network = build_network("lenet-compact", num_outputs=11, auxiliary=True).eval()
    assert isinstance(network, TwoHeads)
    x = torch.rand(3, 1, 28, 28)
    features = network.trunk(x)
    assert torch.equal(network(x)[:, :10], network.head(features))
    assert torch.equal(network(x)[:, 10:], network.auxiliary(features))


def test_weights_depend_on_the_seed_and_not_on_the_callers_random_state():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = build_network("lenet-compact", seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    again, other = build_network("lenet-compact", seed=1), build_network("lenet-compact", seed=2)
    weights = [next(n.parameters()) for n in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_resnet_head_starts_with_the_published_spread():
    head = list(build_network("resnet20-wide", num_outputs=1000).modules())[-1]
    assert isinstance(head, nn.Linear)
    assert head.weight.std().item() == pytest.approx((2 / 3 / 256) ** 0.5, rel=0.02)
    assert not head.bias.any()


def test_impossible_settings_are_refused():
    with pytest.raises(LookupError, match=r"unknown network 'lenett'. Did you mean 'lenet'"):
        build_network("lenett")
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        build_network("lenet", num_outputs=1)
    with pytest.raises(ValueError, match="two classes and the auxiliary column, got 2"):
        build_network("resnet20", num_outputs=2, auxiliary=True)
    with pytest.raises(ValueError, match="image_size: expected a multiple of 4"):
        build_network("lenet-compact", image_size=30)
