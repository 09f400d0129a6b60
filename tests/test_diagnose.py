from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import hardtanh

from cpr_wrap import CPRWrapper, input_gradient_report

from .toys import Curved, Line, pixels


class After(nn.Module):
    """A network behind a function of its input."""

    def __init__(self, function, network=None) -> None:
        super().__init__()
        self.function = function
        self.network = Curved() if network is None else network
        self.eval()

    def forward(self, x):
        return self.network(self.function(x))


def on_bounds(count=10):
    """Images of which three in four pixels lie on a bound: 0, 0, 1, and something between."""
    x = pixels(count)
    x[:, 0, 0] = 0
    x[:, 0, 1, 0] = 1
    return x


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.usefixtures("quiet")
def test_a_healthy_network_has_nothing_to_report():
    report = input_gradient_report(Curved(), on_bounds())
    assert report.warning == ""
    assert report.num_images == 10
    assert report.on_bound == 0.75
    assert report.zero == report.zero_on_bound == report.zero_off_bound == 0
    assert report.zero_cross_entropy == 0
    assert report.flat_images == report.flat_images_cross_entropy == 0


def clamp_gradient_on_the_bound():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(x.clamp(0, 1).sum(), x)
    return gradient.tolist()


def test_a_clamp_at_the_input_is_found_where_it_stops_gradients():
    # torch 2.15's clamp has gradient 0 on its bounds, earlier ones 1; hardtanh has 0 in all.
    if clamp_gradient_on_the_bound() == [1.0, 1.0]:
        assert input_gradient_report(After(lambda x: x.clamp(0, 1)), on_bounds()).zero == 0
        return
    with pytest.warns(UserWarning, match="the network seems to clamp its input"):
        report = input_gradient_report(After(lambda x: x.clamp(0, 1)), on_bounds())
    assert report.zero_on_bound == 1


def test_a_clamping_activation_at_the_input_is_found():
    with pytest.warns(UserWarning, match=r"100% of the pixels on a bound .* and 0% a little off"):
        report = input_gradient_report(After(lambda x: hardtanh(x, 0, 1)), on_bounds())
    assert report.zero_on_bound == 1
    assert report.zero_off_bound == report.zero_after_nudge == 0
    assert report.zero == 0.75
    assert "Remove the clamp" in report.warning


@pytest.mark.usefixtures("quiet")
def test_a_clamp_is_harmless_where_no_pixel_is_on_a_bound():
    report = input_gradient_report(After(lambda x: hardtanh(x, 0, 1)), pixels(10))
    assert report.on_bound == report.zero == 0


def test_dead_units_are_not_mistaken_for_a_clamp():
    with pytest.warns(UserWarning, match="saturated or dead") as caught:
        report = input_gradient_report(After(lambda x: (x - 0.9).relu()), on_bounds())
    assert len(caught) == 1
    assert report.zero_after_nudge == report.zero_on_bound == pytest.approx(2 / 3)
    assert "clamp its input" not in report.warning


def test_a_saturated_softmax_is_found():
    # In float32 exp(-104) is 0, so a lead of 200 leaves the cross-entropy no gradient.
    x = torch.tensor([[0.1], [0.49], [0.9]])
    with pytest.warns(UserWarning, match="2 of 3 images have a gradient of the outputs but none"):
        report = input_gradient_report(Line(slope=500, dtype=torch.float32), x)
    assert report.zero == 0
    assert report.zero_cross_entropy == pytest.approx(2 / 3)
    assert (report.flat_images, report.flat_images_cross_entropy) == (0, 2)
    # What it means: T(x) does not move, and everything is accepted.
    model = CPRWrapper(Line(slope=500, dtype=torch.float32), radius=0.5, steps=5, step_size=0.1)
    assert torch.equal(model.rule.transform(model, x[::2]), x[::2])


def test_a_saturated_softmax_inside_the_network_is_found():
    class Probabilities(Line):
        def forward(self, x):
            return super().forward(x).softmax(1)

    x = torch.tensor([[0.1], [0.49], [0.9]])
    with pytest.warns(UserWarning, match="2 of 3 images have no gradient at all, not even of the"):
        report = input_gradient_report(Probabilities(slope=500, dtype=torch.float32), x)
    assert (report.flat_images, report.flat_images_cross_entropy) == (2, 2)


def test_a_selective_classifier_is_looked_through():
    with pytest.warns(UserWarning, match="clamp its input"):
        report = input_gradient_report(CPRWrapper(After(lambda x: hardtanh(x, 0, 1))), on_bounds())
    assert report.zero_on_bound == 1


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_right_without_grad_mode_and_in_any_batches(around):
    network = After(lambda x: hardtanh(x, 0, 1))
    with pytest.warns(UserWarning, match="clamp"):
        expected = input_gradient_report(network, on_bounds())
    with around(), pytest.warns(UserWarning, match="clamp"):
        assert input_gradient_report(network, on_bounds(), batch_size=3) == expected


def test_leaves_no_trace():
    network, x = Curved(), on_bounds()
    input_gradient_report(network, x)
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert torch.equal(x, on_bounds())
    assert not x.requires_grad


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="expected a network in eval mode"):
        input_gradient_report(Curved().train(), on_bounds())
    with pytest.raises(ValueError, match=r"expected pixels in \[0, 1\]"):
        input_gradient_report(Curved(), on_bounds() * 255)
    with pytest.raises(
        ValueError, match="batch_size: expected a whole number of at least 1, got 0"
    ):
        input_gradient_report(Curved(), on_bounds(), batch_size=0)
