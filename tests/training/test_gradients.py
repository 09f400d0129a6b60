"""Where gradients flow, where they stop, and that an attack leaves no trace in the network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cpr_wrap.training.method import METHODS, AdversarialMethod, attacking
from cpr_wrap.training.methods import CCAT, MART, RCD, TRADES, abstain_loss, rectification_loss
from tests.toys import Curved, pixels

KEYS = torch.tensor([3, 5, 8, 13])
Y = torch.tensor([1, 0, 1, 0])


class Recorder(nn.Module):
    """Passes calls on and remembers what went in."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach())
        return self.network(x)


def naive_kl(p, q):
    return (p * (p / q).log()).sum(dim=1)


def naive_trades(clean, attacked):
    ce = -clean.softmax(dim=1).log()[torch.arange(4), Y]
    return ce + 6 * naive_kl(clean.softmax(dim=1), attacked.softmax(dim=1))


def naive_mart(clean, attacked):
    p, q = clean.softmax(dim=1), attacked.softmax(dim=1)
    row = torch.arange(4)
    rival = q.masked_fill(F.one_hot(Y, q.shape[1]).bool(), 0).amax(dim=1)
    boosted = -q[row, Y].log() - (1 - rival).log()
    return boosted + 5 * naive_kl(p, q) * (1 - p[row, Y])


@pytest.mark.parametrize(
    ("method", "naive"), [(TRADES(eps=0.1), naive_trades), (MART(eps=0.1), naive_mart)]
)
def test_gradients_flow_through_both_arguments_and_not_through_the_attack(method, naive):
    network = Recorder(Curved(scale=2))
    rows = method.loss(network, pixels(4), Y, KEYS).rows
    ours = torch.autograd.grad(rows.sum(), list(network.network.parameters()))
    clean, x_adv = network.seen[-2:]
    assert torch.equal(clean, pixels(4))
    # the same loss with the attacked images as constants, by differences of the loss itself
    for weight, gradient in zip(network.network.parameters(), ours, strict=True):
        index = gradient.abs().argmax()
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                weight.view(-1)[index] += step
                values.append(naive(network.network(clean), network.network(x_adv)).sum().item())
                weight.view(-1)[index] -= step
        numeric = (values[0] - values[1]) / 2e-6
        assert gradient.view(-1)[index].item() == pytest.approx(numeric, rel=1e-5)
    # and it matters: with the clean outputs held still the gradient is another
    stopped = naive(network.network(clean).detach(), network.network(x_adv)).sum()
    other = torch.autograd.grad(stopped, list(network.network.parameters()))
    assert not torch.allclose(ours[1], other[1], rtol=1e-3)


def test_rectification_teaches_the_head_alone_where_the_prediction_is_right():
    outputs = torch.tensor([[2.0, 0.0, 0.5], [0.0, 1.5, -0.3]], requires_grad=True)
    y = torch.tensor([0, 0])
    (gradient,) = torch.autograd.grad(rectification_loss(outputs, y).sum(), outputs)
    assert gradient[0, :2].tolist() == [0.0, 0.0]
    assert gradient[0, 2] != 0
    # where it is wrong the confidence learns too, with the true probability as a constant
    again = outputs.detach().clone().requires_grad_()
    probs = again[1, :2].softmax(dim=0)
    bce = F.binary_cross_entropy(probs[1] * again[1, 2].sigmoid(), probs[0].detach())
    (expected,) = torch.autograd.grad(bce, again)
    assert torch.allclose(gradient[1], expected[1], atol=1e-6)
    assert gradient[1, :2].abs().min() > 0.01


def test_rcd_abstain_gradient_goes_through_the_smaller_term_only():
    outputs = torch.tensor([[3.0, 0.0, 1.0], [0.0, 1.0, 4.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(
        abstain_loss(outputs, torch.zeros(2, dtype=torch.int64)).sum(), outputs
    )
    assert gradient[0, 2] == 0  # being right is cheaper: the reject logit does not matter
    assert gradient[1, 0] == 0  # silence is cheaper: the true logit does not matter
    assert gradient[0, 0] < 0
    assert gradient[1, 2] < 0


def test_rcd_shows_one_half_twice_and_attacks_all_in_one_batch():
    network = Recorder(Curved(outputs=3, scale=2))
    RCD(eps=0.1, steps=3).loss(network, pixels(4), Y, KEYS)
    assert [len(x) for x in network.seen] == [4, 4, 4, 6]
    x = pixels(4)
    assert torch.equal(network.seen[-1][4:], x[[0, 2]])
    change = (network.seen[-1][:4] - x[[0, 2, 1, 3]]).flatten(1).abs().amax(dim=1)
    assert change.tolist() == pytest.approx([0.1] * 4)


def test_ccat_attacks_every_second_image():
    network = Recorder(Curved(outputs=3, scale=2))
    CCAT(eps=0.1, steps=3).loss(network, pixels(4), Y, KEYS)
    assert {len(x) for x in network.seen[:-1]} == {2}
    assert torch.equal(network.seen[-1][:2], pixels(4)[[0, 2]])


class Watched(nn.Module):
    """Notes whether what it learns from came without a graph."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.graphs = []

    def forward(self, x):
        if self.training:
            self.graphs.append(x.requires_grad)
        return self.network(x)


# Bounds read a network's layers; the toy has none.
@pytest.mark.parametrize("name", [name for name in METHODS if name != "ibp"])
def test_points_that_are_learned_from_are_constants(name):
    method = METHODS[name]()
    network = Watched(Curved(outputs=3 + method.extra_outputs, scale=2)).train()
    method.loss(network, pixels(4), Y, KEYS).rows.sum().backward()
    assert network.graphs == [False] * (2 if name in ("trades", "mart") else 1)


def test_a_rectified_confidence_does_not_teach_the_attack_the_auxiliary_head():
    """Whatever the second head says, ATRR's points are the same."""
    points = []
    for lean in (0.0, 50.0):
        network = Recorder(Curved(outputs=4, scale=2))
        with torch.no_grad():
            list(network.network.parameters())[-1][-1] += lean
        METHODS["atrr"](eps=0.1).loss(network, pixels(4), Y, KEYS)
        points.append(network.seen[-1])
    assert torch.equal(*points)


def batch_norm_network(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, outputs)
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_step_changes_nothing_but_batch_statistics(name):
    method = METHODS[name]()
    network = batch_norm_network(3 + method.extra_outputs).train()
    network[4].weight.requires_grad_(False)
    network[2].eval()
    x, y = pixels(6, 1, 6, 6).float(), torch.tensor([0, 1, 2, 0, 1, 2])
    before = x.clone()
    state = torch.get_rng_state()
    losses = method.loss(network, x, y, torch.arange(6))
    assert losses.rows.shape == (6,)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, before)
    assert all(p.grad is None for p in network.parameters())
    assert not network[4].weight.requires_grad
    assert network[4].bias.requires_grad
    assert network.training
    assert network[1].training
    assert not network[2].training
    # only the forwards that are learned from count: one, or clean and attacked apart
    expected = 2 if name in ("trades", "mart") else 1
    assert network[1].num_batches_tracked == expected


@pytest.mark.parametrize("name", METHODS)
def test_random_starts_depend_on_the_keys_alone(name):
    method = METHODS[name]()
    if isinstance(method, AdversarialMethod):  # too short to forget where it began
        method = METHODS[name](steps=1, step_size=0.001)
    if name == "ibp":  # without a smaller box it has no attack
        method = replace(method, box=0.5)
    network = batch_norm_network(3 + method.extra_outputs).train()
    x, y = pixels(6, 1, 6, 6).float(), torch.tensor([0, 1, 2, 0, 1, 2])

    def rows(keys):
        network[1].reset_running_stats()
        return method.loss(network, x, y, keys).rows

    first = rows(torch.arange(6))
    torch.manual_seed(99)
    assert torch.equal(rows(torch.arange(6)), first)
    if isinstance(method, AdversarialMethod):
        assert not torch.equal(rows(torch.arange(6) + 6), first)


def test_attacking_gives_every_module_its_own_mode_back_even_after_an_error():
    network = batch_norm_network(3).train()
    network[1].eval()

    def fail():
        with attacking(network):
            assert not any(m.training for m in network.modules())
            assert not any(p.requires_grad for p in network.parameters())
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [m.training for m in network] == [True, False, True, True, True]
    assert all(p.requires_grad for p in network.parameters())
