"""What networks we take."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from cpr_wrap.zoo import check_network
from cpr_wrap.zoo.checks import looks_like_probabilities, probe_images
from tests.toys import Line

X = torch.tensor([[0.2], [0.7]], dtype=torch.float64)


class Answers(nn.Module):
    """Gives a fixed answer."""

    def __init__(self, answer) -> None:
        super().__init__()
        self.answer = answer
        self.eval()

    def forward(self, x):
        return self.answer


def test_logits_pass_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_network(Line(), X, num_classes=2)


def test_probabilities_are_warned_about():
    with pytest.warns(UserWarning, match="look like softmax probabilities"):
        check_network(nn.Sequential(Line(), nn.Softmax(dim=1)).eval(), X)


@pytest.mark.parametrize(
    ("outputs", "alike"),
    [
        ([[0.25, 0.75], [1.0, 0.0]], True),
        ([[0.25, 0.75], [1.0, 0.5]], False),  # one row does not sum to 1
        ([[1.5, -0.5], [1.0, 0.0]], False),  # sums to 1, but is negative somewhere
    ],
)
def test_what_looks_like_probabilities(outputs, alike):
    assert looks_like_probabilities(torch.tensor(outputs)) is alike


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        ((torch.zeros(2, 3), None), "tuple"),
        (torch.zeros(2), r"\(2,\)"),
        (torch.zeros(1, 3), r"\(1, 3\)"),
        (torch.zeros(2, 3, 1, 1), r"\(2, 3, 1, 1\)"),
    ],
)
def test_outputs_of_another_shape(answer, got):
    with pytest.raises(ValueError, match=rf"outputs \(2, classes\) for 2 images, got {got}"):
        check_network(Answers(answer), X)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite(bad):
    with pytest.raises(ValueError, match="expected finite outputs"):
        check_network(Answers(torch.tensor([[0.0, 1], [0, bad]])), X)


def test_wrong_number_of_outputs():
    with pytest.raises(ValueError, match="expected outputs for 10 classes, got 2"):
        check_network(Line(), X, num_classes=10)
    with pytest.raises(ValueError, match="for 2 classes and 1 more for the rejection rule, got 2"):
        check_network(Line(), X, num_classes=2, extra_outputs=1)
    with pytest.raises(ValueError, match=r"at least 2 classes and 1 more.*got 2"):
        check_network(Line(), X, extra_outputs=1)
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        check_network(Answers(torch.zeros(2, 1)), X)


def test_images_the_network_cannot_take():
    with pytest.raises(ValueError, match=r"does not take images of shape \(2, 3, 8, 8\)"):
        check_network(nn.Linear(4, 2).eval(), torch.rand(2, 3, 8, 8))


def test_training_mode():
    with pytest.raises(ValueError, match="eval mode"):
        check_network(nn.Sequential(Line(), nn.Dropout()).train(), X)


def test_images_that_are_normalised_already():
    with pytest.raises(ValueError, match=r"normalized already.*cpr_wrap.Normalize"):
        check_network(Line(), X * 4 - 2)


def test_probe_images_follow_the_network():
    probe = probe_images(Line(), (1, 4, 4))
    assert probe.shape == (2, 1, 4, 4)
    assert probe.dtype == torch.float64
    assert probe.min() >= 0
    assert probe.max() < 1
    assert torch.equal(probe, probe_images(Line(), (1, 4, 4)))
    assert probe_images(nn.Flatten(), (1, 4, 4)).dtype == torch.float32
