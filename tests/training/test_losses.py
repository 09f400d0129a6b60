"""Every loss on images of one pixel, where the worst point of the ball is found by looking."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from cpr_wrap import noise
from cpr_wrap.training.method import METHODS, AdversarialMethod, cross_entropy
from cpr_wrap.training.methods import (
    AT,
    ATRR,
    CCAT,
    MART,
    RCD,
    TRADES,
    FastAT,
    StandardTraining,
    abstain_loss,
    boosted_cross_entropy,
    kl,
    rectification_loss,
    wrong_confidence,
)
from tests.toys import Line, Linear

EPS = 0.1
KEYS = torch.tensor([3, 5, 8, 13])
# One pixel each; the boundary is at 0.5, class 1 above it.
X = torch.tensor([[0.8], [0.25], [0.55], [0.35]], dtype=torch.float64)
Y = torch.tensor([1, 0, 1, 0])
OUTPUTS = torch.tensor([[1.0, -0.5, 0.3], [0.2, 2.0, 1.1]], dtype=torch.float64)
LABELS = torch.tensor([0, 2])


def log_probs(row):
    total = math.log(sum(math.exp(v) for v in row))
    return [v - total for v in row]


def worst(x, value):
    """Largest value on a fine grid of the ball around each pixel, and where it is."""
    grid = x + torch.linspace(-EPS, EPS, 2001, dtype=x.dtype)  # (N, G)
    values = torch.stack([value(column[:, None]) for column in grid.unbind(dim=1)], dim=1)
    best = values.argmax(dim=1, keepdim=True)
    return values.gather(1, best).squeeze(1), grid.gather(1, best)


def test_standard_is_the_cross_entropy():
    losses = StandardTraining().loss(Line(slope=2), X, Y, KEYS)
    # the true class leads by 4 * |x - 0.5|
    expected = [math.log1p(math.exp(-lead)) for lead in (1.2, 1.0, 0.2, 0.6)]
    assert losses.rows.tolist() == pytest.approx(expected)
    assert losses.clean.tolist() == [True] * 4
    assert losses.adversarial is None


@pytest.mark.parametrize("method", [AT(eps=EPS), FastAT(eps=EPS, step_size=0.2)])
def test_adversarial_training_is_the_cross_entropy_at_the_worst_point(method):
    losses = method.loss(Line(slope=2), X, Y, KEYS)
    # eps takes 0.4 off every lead; the third image is lost
    expected = [math.log1p(math.exp(-lead)) for lead in (0.8, 0.6, -0.2, 0.2)]
    assert losses.rows.tolist() == pytest.approx(expected)
    assert losses.adversarial.tolist() == [True, True, False, True]


def test_trades_adds_beta_times_the_divergence():
    network = Line(slope=2)
    losses = TRADES(eps=EPS, beta=3.0).loss(network, X, Y, KEYS)
    # The divergence grows to both sides of x, so the start decides which end is reached.
    side = noise.normal(KEYS, 1).sign()
    p, q = network(X).softmax(dim=1), network(X + EPS * side).softmax(dim=1)
    divergence = (p * (p / q).log()).sum(dim=1)
    expected = F.cross_entropy(network(X), Y, reduction="none") + 3 * divergence
    assert torch.allclose(losses.rows, expected)
    assert divergence.min() > 0.005


def test_divergence_by_hand():
    p, q = [[math.exp(v) for v in log_probs(row.tolist())] for row in OUTPUTS]
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert kl(OUTPUTS[:1], OUTPUTS[1:]).item() == pytest.approx(expected)
    assert kl(OUTPUTS, OUTPUTS).tolist() == pytest.approx([0, 0], abs=1e-12)


def test_mart_weighs_the_divergence_by_clean_doubt():
    network = Line(slope=2)
    losses = MART(eps=EPS, beta=3.0).loss(network, X, Y, KEYS)
    x_adv = X - EPS * (2 * Y - 1)[:, None]
    p, q = network(X).softmax(dim=1), network(x_adv).softmax(dim=1)
    row = torch.arange(4)
    boosted = -q[row, Y].log() - (1 - q[row, 1 - Y]).log()
    divergence = (p * (p / q).log()).sum(dim=1)
    assert torch.allclose(losses.rows, boosted + 3 * divergence * (1 - p[row, Y]))


def test_boosted_cross_entropy_by_hand():
    first, second = ([math.exp(v) for v in log_probs(row.tolist())] for row in OUTPUTS)
    expected = [
        -math.log(first[0]) - math.log(1 - first[2]),
        -math.log(second[2]) - math.log(1 - second[1]),
    ]
    assert boosted_cross_entropy(OUTPUTS, LABELS).tolist() == pytest.approx(expected)


def test_boosted_cross_entropy_stays_finite_where_the_rival_is_certain():
    outputs = torch.tensor([[0.0, 400.0, 0.0]])
    assert boosted_cross_entropy(outputs, torch.tensor([0])).item() == pytest.approx(
        800 - math.log(2), rel=1e-6
    )


def test_ccat_learns_one_half_clean_and_the_other_towards_uniform():
    network = Line(slope=2)
    losses = CCAT(eps=EPS, steps=40, step_size=0.02).loss(network, X, Y, KEYS)
    clean = F.cross_entropy(network(X[0::2]), Y[0::2], reduction="none")
    # The attack reaches the end of the ball, where nothing is left of the true label.
    x_adv = X[1::2] - EPS * (2 * Y[1::2] - 1)[:, None]
    attacked = -network(x_adv).log_softmax(dim=1).mean(dim=1)
    assert torch.allclose(losses.rows, torch.cat([clean, attacked]))
    assert losses.clean.tolist() == [True, True]
    assert losses.adversarial.tolist() == [True, True]


def test_ccat_label_fades_with_the_length_of_the_change():
    method = CCAT(eps=0.2, rho=2.0)
    x = torch.full((4, 2), 0.5, dtype=torch.float64)
    change = torch.tensor([[0.0, 0.0], [0.1, -0.05], [-0.2, 0.0], [0.15, 0.3]])
    labels = method.soft_labels(x, x + change, torch.tensor([0, 1, 2, 3]), 4)
    trust = [1.0, 0.25, 0.0, 0.0]  # (1 - 0.1 / 0.2) ** 2 is a quarter; beyond eps nothing is left
    for row, (label, t) in enumerate(zip(labels, trust, strict=True)):
        expected = [(1 - t) / 4 + t * (j == row) for j in range(4)]
        assert label.tolist() == pytest.approx(expected, abs=1e-7)


def test_ccat_attacks_the_largest_wrong_probability():
    first, second = ([math.exp(v) for v in log_probs(row.tolist())] for row in OUTPUTS)
    assert wrong_confidence(OUTPUTS, LABELS).tolist() == pytest.approx([first[2], second[1]])


# Three columns on one pixel: class 0 below, class 1 above, and reject around 0.5.
THREE = Linear([[-8.0], [8.0], [0.0]], [4.0, -4.0, 0.5])


def test_rcd_has_an_abstain_half_and_an_adversarial_half():
    losses = RCD(eps=EPS, steps=20, abstain_weight=2.0, clean_weight=3.0).loss(THREE, X, Y, KEYS)
    may, must = slice(0, None, 2), slice(1, None, 2)
    abstain, _ = worst(X[may], lambda z: abstain_loss(THREE(z), Y[may]))
    clean = F.cross_entropy(THREE(X[may]), Y[may], reduction="none")
    adversarial, _ = worst(X[must], lambda z: cross_entropy(THREE(z), Y[must]))
    expected = torch.cat([2 * abstain + 3 * clean, adversarial])
    assert torch.allclose(losses.rows, expected, atol=2e-3)
    # 0.55, and 0.45 after the attack, lie where the reject column is the largest
    assert losses.clean.tolist() == [True, False]
    assert losses.adversarial.tolist() == [True, False]


def test_abstain_loss_by_hand():
    for row, y in zip(OUTPUTS.tolist(), (0, 1), strict=True):
        right = -log_probs(row[:2])[y]
        others = [v for j, v in enumerate(row) if j != y]
        silent = -log_probs(others)[-1]
        found = abstain_loss(torch.tensor([row]), torch.tensor([y])).item()
        assert found == pytest.approx(min(right, silent), rel=1e-5)


def test_abstain_loss_takes_the_cheaper_way_out():
    # sure of the true class; sure of reject; sure of a mistake
    outputs = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0], [0.0, 9.0, 0.0]])
    found = abstain_loss(outputs, torch.zeros(3, dtype=torch.int64))
    assert found[:2].max() < 0.001
    assert found[2] > 8


def test_atrr_adds_the_rectification_at_the_worst_point_for_the_classes():
    losses = ATRR(eps=EPS, rectify_weight=2.0).loss(THREE, X, Y, KEYS)
    x_adv = X - EPS * (2 * Y - 1)[:, None]
    outputs = THREE(x_adv)
    ce = F.cross_entropy(outputs[:, :2], Y, reduction="none")
    probs = outputs[:, :2].softmax(dim=1)
    rectified = probs.amax(dim=1) * outputs[:, 2].sigmoid()
    truth = probs.gather(1, Y[:, None]).squeeze(1)
    bce = F.binary_cross_entropy(rectified, truth, reduction="none")
    assert torch.allclose(losses.rows, ce + 2 * bce)
    assert losses.adversarial.tolist() == [True, True, False, True]


def test_rectification_stays_finite_where_probabilities_round_to_0_and_1():
    outputs = torch.tensor([[90.0, -90.0, 90.0], [90.0, -90.0, 90.0], [-90.0, 90.0, -90.0]])
    outputs.requires_grad_()
    found = rectification_loss(outputs, torch.tensor([0, 1, 1]))
    found.sum().backward()
    # certain and right with A = 1 costs nothing; certain and wrong with A = 1 costs -log(1 - A)
    assert found.tolist() == pytest.approx([0.0, 90.0, 90.0], abs=1e-5)
    assert outputs.grad.isfinite().all()


# Bounds read a network's layers; the toys have none.
@pytest.mark.parametrize("name", [name for name in METHODS if name != "ibp"])
def test_the_mean_of_the_rows_does_not_depend_on_how_a_batch_is_shared(name):
    """Two processes with two images each see the rows that one process sees."""
    method = METHODS[name]()
    if isinstance(method, AdversarialMethod):
        method = METHODS[name](eps=EPS)
    network = THREE if method.extra_outputs else Line(slope=2)
    whole = method.loss(network, X, Y, KEYS).rows
    parts = [method.loss(network, X[s], Y[s], KEYS[s]).rows for s in (slice(0, 2), slice(2, 4))]
    assert torch.allclose(whole.sum(), torch.cat(parts).sum())
