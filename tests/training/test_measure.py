from __future__ import annotations

import pytest
import torch

from cpr_wrap.training.measure import clean_accuracy, pgd_accuracy
from tests.toys import Line, Linear, Plane

# distances to the boundary at 0.5: 0.05, 0.15, 0.25, 0.35, and one on the wrong side
X = torch.tensor([[0.55], [0.35], [0.75], [0.15], [0.9]], dtype=torch.float64)
Y = torch.tensor([1, 0, 1, 0, 0])


def test_accuracies_count_the_images_beyond_eps():
    network = Line()
    assert clean_accuracy(network, X, Y, 2) == 0.8
    assert [pgd_accuracy(network, X, Y, 2, eps) for eps in (0.01, 0.1, 0.2, 0.3, 0.4)] == [
        0.8, 0.6, 0.4, 0.2, 0.0
    ]  # fmt: skip


def test_euclidean_threat():
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = 0.3 + 0.4 * x  # the ball stays inside [0, 1]
    x = x[(Plane.distance(x).abs() - 0.1).abs() > 0.005]  # rounding decides too near to eps
    y = (Plane.distance(x) >= 0).long()
    found = pgd_accuracy(Plane(), x, y, 2, 0.1, norm="L2")
    assert found == pytest.approx((Plane.distance(x).abs() > 0.1).double().mean().item())


def test_columns_after_the_classes_are_not_read():
    network = Linear([[-1.0], [1.0], [0.0]], [0.5, -0.5, 9.0])
    assert clean_accuracy(network, X, Y, 2) == 0.8
    assert pgd_accuracy(network, X, Y, 2, 0.2) == 0.4


def test_the_network_is_left_as_it_was():
    network = Line().train()
    pgd_accuracy(network, X, Y, 2, 0.1)
    assert network.training
    assert all(p.requires_grad and p.grad is None for p in network.parameters())
