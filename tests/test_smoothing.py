from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cpr_wrap import load, load_data
from cpr_wrap.networks import build_network
from cpr_wrap.smoothing import exact, obstacle, smoothed
from cpr_wrap.zoo.robustbench import import_robustbench


def gradient_of(function, x, *, strength=None):
    """The function's value, and the gradient of its sum, smoothed if a strength is given."""
    point = x.clone().requires_grad_()
    if strength is None:
        value = function(point)
    else:
        with smoothed(strength):
            value = function(point)
    (gradient,) = torch.autograd.grad(value.sum(), point)
    return value.detach(), gradient


def samples(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


BENT = {
    "torch.relu": torch.relu,
    "F.relu": F.relu,
    "Tensor.relu": lambda x: x.relu(),
    "torch.relu_": lambda x: torch.relu_(x * 1),
    "F.relu inplace": lambda x: F.relu(x * 1, inplace=True),
    "F.relu inplace by position": lambda x: F.relu(x * 1, True),
    "Tensor.relu_": lambda x: (x * 1).relu_(),
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU inplace": lambda x: nn.ReLU(inplace=True)(x * 1),
    "relu6": lambda x: F.relu6(4 * x),
    "nn.ReLU6": lambda x: nn.ReLU6()(4 * x),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "nn.LeakyReLU inplace": lambda x: nn.LeakyReLU(0.1, inplace=True)(x * 1),
    "hardtanh": F.hardtanh,
    "nn.Hardtanh": nn.Hardtanh(-0.5, 0.5),
    "hardsigmoid": lambda x: F.hardsigmoid(3 * x),
    "hardswish": lambda x: F.hardswish(3 * x),
    "nn.Hardswish inplace": lambda x: nn.Hardswish(inplace=True)(3 * x),
    "clamp": lambda x: x.clamp(0, 1),
    "clamp by name": lambda x: torch.clamp(x, min=0, max=1),
    "clamp_": lambda x: (x * 1).clamp_(-0.5),
    "clip": lambda x: torch.clip(x, max=0.5),
    "clamp_min": lambda x: x.clamp_min(0.5),
    "clamp_max_": lambda x: (x * 1).clamp_max_(0.5),
    "abs": torch.abs,
    "abs()": abs,
    "maximum": lambda x: torch.maximum(x, torch.zeros(())),
    "minimum": lambda x: torch.minimum(x, -x),
    "amax": lambda x: x.amax(dim=(2, 3)),
    "amin": lambda x: torch.amin(x, dim=1, keepdim=True),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "torch.max_pool2d": lambda x: torch.max_pool2d(x, 2),
    "nn.MaxPool2d": nn.MaxPool2d(2),
    "max_pool2d, overlapping, padded": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max_pool2d, dilated": lambda x: F.max_pool2d(x, 2, stride=1, dilation=2),
    "max_pool2d, ceil": lambda x: F.max_pool2d(x, 3, stride=2, ceil_mode=True),
    "max_pool2d, oblong": lambda x: F.max_pool2d(x, (1, 3), stride=(1, 2), padding=(0, 1)),
    "max_pool1d": lambda x: F.max_pool1d(x.flatten(2), 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "nn.AdaptiveMaxPool1d": lambda x: nn.AdaptiveMaxPool1d(1)(x.flatten(2)),
}


@pytest.mark.parametrize("name", BENT)
def test_values_are_the_same_and_gradients_are_others(name):
    function = BENT[name]
    x = samples(2, 3, 8, 8)
    value, plain = gradient_of(function, x)
    same, smooth = gradient_of(function, x, strength=0.3)
    assert torch.equal(value, same)
    assert bool(smooth.isfinite().all())
    assert not torch.allclose(plain, smooth, atol=0)


@pytest.mark.parametrize("name", BENT)
def test_little_smoothing_is_the_plain_gradient(name):
    # Values on a grid, off the bends and without ties: then the limit is the plain gradient.
    generator = torch.Generator().manual_seed(1)
    x = (torch.randperm(2 * 3 * 64, generator=generator).view(2, 3, 8, 8) - 192.3).double() / 100
    _, plain = gradient_of(BENT[name], x)
    _, smooth = gradient_of(BENT[name], x, strength=1e-5)
    torch.testing.assert_close(smooth, plain, atol=1e-6, rtol=1e-6)


def test_relu_has_the_slope_of_a_softplus():
    x = samples(2, 3, 8, 8)
    _, gradient = gradient_of(torch.relu, x, strength=0.2)
    width = 0.2 * x.square().mean(dim=(2, 3), keepdim=True).sqrt()
    torch.testing.assert_close(gradient, torch.sigmoid(x / width))


def test_a_clamp_has_two_bends():
    x = samples(2, 100)
    _, gradient = gradient_of(lambda v: v.clamp(-1, 0.5), x, strength=0.2)
    nearest = torch.minimum((x + 1).abs(), (x - 0.5).abs())
    width = 0.2 * nearest.square().mean(dim=1, keepdim=True).sqrt()
    expected = torch.sigmoid((x + 1) / width) - torch.sigmoid((x - 0.5) / width)
    torch.testing.assert_close(gradient, expected)


def test_pooling_shares_its_gradient_by_a_softmax():
    x = samples(1, 1, 2, 20)
    maxima, gradient = gradient_of(lambda v: F.max_pool2d(v, 2), x, strength=0.5)
    windows, received = (v.view(2, 10, 2).transpose(0, 1).flatten(1) for v in (x, gradient))
    shares = (windows / (0.5 * maxima.std(correction=0))).softmax(dim=1)
    torch.testing.assert_close(received, shares)


def test_overlapping_windows_add_up():
    _, gradient = gradient_of(lambda v: F.max_pool2d(v, 3, 2, 1), samples(2, 3, 9, 7), strength=0.3)
    torch.testing.assert_close(gradient.sum(dim=(2, 3)), torch.full((2, 3), 20.0))
    assert bool((gradient > 0).all())


def lenet():
    return build_network("lenet-compact", num_outputs=10).eval()


def of_timm(name):
    def build():
        import timm

        torch.manual_seed(0)
        return timm.create_model(name, pretrained=False, num_classes=10).eval()

    return build


def of_robustbench():
    import_robustbench()
    from robustbench.model_zoo.architectures.wide_resnet import WideResNet

    torch.manual_seed(0)
    return WideResNet(depth=10, widen_factor=1).eval()


NETWORKS = {
    "lenet": (lenet, (1, 28, 28)),
    "resnet20": (lambda: build_network("resnet20", num_outputs=10).eval(), (3, 32, 32)),
    "timm resnet10t": (of_timm("resnet10t"), (3, 64, 64)),
    "timm mobilenetv3": (of_timm("mobilenetv3_small_050"), (3, 64, 64)),
    "timm lcnet": (of_timm("lcnet_035"), (3, 64, 64)),
    "robustbench wide resnet": (of_robustbench, (3, 32, 32)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks_answer_to_the_last_bit(name):
    build, shape = NETWORKS[name]
    network = build()
    x = samples(3, *shape).sigmoid()
    value, plain = gradient_of(network, x)
    same, smooth = gradient_of(network, x, strength=0.15)
    assert torch.equal(value, same)
    assert bool(smooth.isfinite().all())
    assert not torch.allclose(plain, smooth, atol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_row_does_not_depend_on_the_others(name):
    build, shape = NETWORKS[name]
    network = build().double()
    x = samples(4, *shape).sigmoid().double()
    x[1] *= 1e-3  # a batch's spread would not be this row's
    _, together = gradient_of(network, x, strength=0.15)
    for row in range(4):
        _, alone = gradient_of(network, x[row : row + 1], strength=0.15)
        torch.testing.assert_close(together[row : row + 1], alone)


def test_networks_with_smooth_functions_alone_are_left_as_they_are():
    network = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    with smoothed() as smoothing:
        network(samples(3, 4))
    assert smoothing.replaced == 0


def test_a_dead_first_layer_gets_gradients():
    network = lenet()
    with torch.no_grad():
        network[0].bias -= 100
    x = samples(2, 1, 28, 28).sigmoid()
    _, plain = gradient_of(network, x)
    _, smooth = gradient_of(network, x, strength=0.15)
    assert not plain.any()
    assert bool((smooth != 0).flatten(1).any(dim=1).all())


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_a_clamp_at_the_input_lets_gradients_through(bound):
    x = samples(2, 1, 28, 28).sigmoid()
    x[:, :, :14] = bound
    weight = samples(1, 1, 28, 28).abs() + 0.1
    _, smooth = gradient_of(lambda v: v.clamp(0, 1) * weight, x, strength=0.15)
    assert bool((smooth[:, :, :14] > 0.1 * weight[:, :, :14]).all())


def test_an_inplace_function_changes_its_input():
    x = samples(2, 5).requires_grad_()
    with smoothed():
        hidden = x * 1
        result = F.relu(hidden, inplace=True)
    assert torch.equal(hidden, x.relu())
    assert torch.equal(result, hidden)
    (through_input,) = torch.autograd.grad(hidden.sum(), x)
    assert bool((through_input > 0).all())


def test_results_may_be_changed_in_place():
    network = nn.Sequential(nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    x = samples(2, 3, 8, 8)
    value, _ = gradient_of(network, x)
    same, smooth = gradient_of(network, x, strength=0.15)
    assert torch.equal(value, same)
    assert bool((smooth > 0).all())


@pytest.mark.parametrize("function", [torch.relu, abs, nn.MaxPool2d(2), lambda x: x.amax(dim=1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_channels_without_any_spread_get_finite_gradients(function, dtype):
    _, smooth = gradient_of(function, torch.zeros(2, 3, 8, 8, dtype=dtype), strength=0.15)
    assert bool(smooth.isfinite().all())


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode, exact])
def test_nothing_is_replaced_where_it_is_off(off):
    network = lenet()
    x = samples(2, 1, 28, 28).requires_grad_()
    with smoothed() as smoothing, off():
        network(x)
    assert smoothing.replaced == 0


def test_exact_inside_gives_plain_gradients_and_ends():
    x = samples(2, 3, 8, 8)
    _, plain = gradient_of(torch.relu, x)
    _, smooth = gradient_of(torch.relu, x, strength=0.15)
    with smoothed(0.15):
        with exact(), exact():
            _, inside = gradient_of(torch.relu, x)
        _, after = gradient_of(torch.relu, x)
    assert torch.equal(inside, plain)
    assert torch.equal(after, smooth)


def test_exact_ends_with_an_error_too():
    with pytest.raises(KeyError), exact():
        raise KeyError
    with smoothed() as smoothing:
        samples(2, 3).requires_grad_().relu()
    assert smoothing.replaced == 1


def test_the_inner_one_of_two_counts():
    x = samples(2, 3, 8, 8)
    _, expected = gradient_of(torch.relu, x, strength=0.5)
    with smoothed(0.05) as outer:
        _, nested = gradient_of(torch.relu, x, strength=0.5)
    assert torch.equal(nested, expected)
    assert outer.replaced == 0


def test_calls_are_counted():
    with smoothed() as smoothing:
        lenet()(samples(2, 1, 28, 28).requires_grad_())
    assert smoothing.replaced == 5  # two poolings, three ReLUs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(torch.zeros(()), torch.ones(())),
        lambda x: x.amax(dim=0),
        lambda x: x.amax(),
        lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
        lambda x: F.adaptive_max_pool2d(x, 3),
        lambda x: x.flatten().relu(),
    ],
)
def test_what_has_no_smooth_version_stays_plain(function):
    x = samples(2, 3, 8, 8)
    value, plain = gradient_of(function, x)
    same, smooth = gradient_of(function, x, strength=0.15)
    assert torch.equal(value, same)
    assert torch.equal(plain, smooth)


@pytest.mark.parametrize("strength", [0, -1, float("nan")])
def test_the_strength_is_positive(strength):
    with pytest.raises(ValueError, match="strength: expected a positive number, got"):
        smoothed(strength)


def test_obstacles_are_named():
    network = nn.Sequential(lenet(), nn.Linear(10, 2))
    assert obstacle(network) == ""
    network[0] = torch.compile(network[0], backend="eager")
    assert obstacle(network) == (
        "module '0' is compiled: pass the module that torch.compile was given"
    )
    network = lenet()
    network.compile(backend="eager")
    assert "the network is compiled" in obstacle(network)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripts_are_an_obstacle_and_stay_plain():
    network, x = lenet(), samples(2, 1, 28, 28)
    script = torch.jit.trace(network, x)
    assert "the network is TorchScript" in obstacle(script)
    _, plain = gradient_of(network, x)
    _, traced = gradient_of(script, x, strength=0.15)
    torch.testing.assert_close(traced, plain)


@pytest.mark.integration
def test_a_compiled_network_gets_one_of_the_two_gradients():
    network, x = lenet(), samples(2, 1, 28, 28)
    compiled = torch.compile(network, backend="aot_eager")
    _, plain = gradient_of(network, x)
    point = x.clone().requires_grad_()
    with smoothed() as smoothing:
        outputs = compiled(point)
    (gradient,) = torch.autograd.grad(outputs.sum(), point)
    expected = gradient_of(network, x, strength=0.15)[1] if smoothing.replaced else plain
    torch.testing.assert_close(gradient, expected)


def test_a_maximum_over_masked_entries_keeps_value_and_gradient():
    x = torch.tensor([[1.0, -torch.inf, 3.0], [-torch.inf, 2.0, 0.0]], requires_grad=True)
    masked = x * 1
    with smoothed():
        value = masked.amax(dim=1)
    assert torch.equal(value, torch.tensor([3.0, 2.0]))
    (gradient,) = torch.autograd.grad(value.sum(), masked)
    assert gradient.isfinite().all()
    assert (gradient[x.isfinite()] > 0).all()


def test_the_verdict_of_a_search_with_smoothed_gradients_is_the_true_one():
    """A score that is NaN under smoothing rejects everything, and successes go unseen."""
    model = load("bundled:mnist-compact-at", radius=0.1, steps=3, step_size=0.04)
    x = load_data("mnist", "robust", num=4).images
    with smoothed():
        view = model.rule.view(model, x.clone().requires_grad_(), path=(1.0,))
    assert torch.equal(view.score.detach(), model.look(x).score)
