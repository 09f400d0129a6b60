"""Bounds hold: for every layer, for sampled and attacked points, rounding included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpr_wrap.bounds import UnsupportedLayerError, crown, crown_leads, leads
from cpr_wrap.bounds.interval import ball
from cpr_wrap.bounds.tape import record
from cpr_wrap.networks import ResidualBlock, TwoHeads
from cpr_wrap.zoo import Normalize

SIDE, CLASSES = 8, 4


class Functional(nn.Module):
    """The same layers as functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(2 * x - 1))
        x = F.max_pool2d(x, 2).relu() + 0.5
        x = F.avg_pool2d(x / 2, 2)
        return self.head(x.view(x.size(0), -1))


class Twice(nn.Module):
    """The same layers twice, a sum of two ways and of one with itself, and work in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.side = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 1)
        self.relu, self.head = nn.ReLU(), nn.Linear(SIDE**2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.relu(self.conv(x)) + self.side(x)
        out = self.head((x + x).flatten(1))
        self.relu(out)
        return out


def _tiny(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    nn.init.constant_(norm.running_var, 1e-12)
    nn.init.uniform_(norm.running_mean)
    return norm


def _head(features: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, CLASSES)]


def _normed(features: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(features)
    for tensor in (norm.running_mean, norm.bias, norm.weight):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, CLASSES)),
    "dense": lambda: nn.Sequential(*_head(SIDE**2)),
    "max pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        *_head(16),
    ),
    "overlapping pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1), *_head(18)
    ),
    "average pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.AvgPool2d(2, padding=1), *_head(12)
    ),
    "batch norm and a sum": lambda: nn.Sequential(
        Normalize([0.3], [0.4]),
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        _normed(2),
        nn.ReLU(inplace=True),
        ResidualBlock(2, 3, 2),
        nn.AdaptiveAvgPool2d(2),
        *_head(12),
    ),
    "three convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.ReLU(),
        _normed(3),
        nn.Conv2d(3, 3, 2),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2),
        nn.ReLU(),
        *_head(8),
    ),
    "groups, gaps and tiny variances": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, dilation=1, stride=(1, 2)),
        _tiny(nn.BatchNorm2d(4)),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=(2, 1), dilation=2, groups=2),
        nn.ReLU(),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        *_head(4 * 5 * 2),
    ),
    "used twice": lambda: Twice(),
    "two heads": lambda: TwoHeads(
        nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 6), nn.ReLU()),
        nn.Linear(6, CLASSES),
        nn.Linear(6, 1),
    ),
    "functions": Functional,
}


def build(name: str, seed: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(seed)
    return NETWORKS[name]().to(dtype).eval().requires_grad_(False)


def margins(network: nn.Module, z: Tensor, y: Tensor) -> Tensor:
    out = network(z)[:, :CLASSES].double()
    lead = out.gather(1, y[:, None]) - out
    return lead.scatter(1, y[:, None], torch.inf)


def worst_found(network: nn.Module, x: Tensor, y: Tensor, radius: float) -> Tensor:
    """Smallest leads at random points, random corners, and at the end of a plain sign descent."""
    found = margins(network, x, y)
    low, high = (x - radius).clamp(0, 1), (x + radius).clamp(0, 1)
    for number in range(30):
        u = torch.rand_like(x)
        z = low + (high - low) * (u if number % 2 else (u > 0.5).to(x.dtype))
        found = torch.minimum(found, margins(network, z, y))
    for target in range(CLASSES):
        z = x.clone()
        for _ in range(8):
            z.requires_grad_()
            out = network(z)
            (gradient,) = torch.autograd.grad(
                (out[:, target] - out.gather(1, y[:, None])[:, 0]).sum(), z
            )
            step = torch.where(gradient > 0, high, low)
            z = (z + 0.5 * (step - z)).detach()
            found = torch.minimum(found, margins(network, z, y))
        found = torch.minimum(found, margins(network, step, y))
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_hold_for_sampled_and_attacked_points(name: str, dtype: torch.dtype) -> None:
    network = build(name, 1, dtype)
    x, y = torch.rand(6, 1, SIDE, SIDE, dtype=dtype), torch.arange(6) % CLASSES
    for radius in (0.0, 0.02, 0.3):
        found = worst_found(network, x, y, radius)
        for bound in (
            leads(network, x, y, radius, num_classes=CLASSES),
            crown_leads(network, x, y, radius, num_classes=CLASSES),
        ):
            assert bound.shape == found.shape
            assert bool((bound.double() <= found).all())


@pytest.mark.parametrize("name", NETWORKS)
def test_every_layers_box_holds_its_values(name: str) -> None:
    network = build(name, 3, torch.float32)
    x = torch.rand(4, 1, SIDE, SIDE)
    entries = record(network, ball(x, 0.1), 1.0)
    for _ in range(30):
        z = (x + 0.1 * (2 * torch.rand_like(x) - 1).sign()).clamp(0, 1)
        points = record(network, ball(z, 0.0, 0.0), 0.0)
        for box, point in zip(entries, points, strict=True):
            assert bool((point.box.center >= box.box.low).all())
            assert bool((point.box.center <= box.box.high).all())


@pytest.mark.parametrize("make", [leads, crown_leads], ids=["interval", "crown"])
def test_of_a_linear_network_bounds_are_the_closed_form(make: object) -> None:
    network = build("linear", 0, torch.float64)
    weight, bias = network[1].weight, network[1].bias
    x, y = torch.rand(5, 1, SIDE, SIDE, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    low, high = (x - 0.3).clamp(0, 1).flatten(1), (x + 0.3).clamp(0, 1).flatten(1)
    rows = weight[y][:, None] - weight[None]
    exact = (rows.clamp_min(0) * low[:, None] + rows.clamp_max(0) * high[:, None]).sum(dim=2)
    exact = (exact + bias[y][:, None] - bias).scatter(1, y[:, None], torch.inf)
    found = make(network, x, y, 0.3)
    assert bool((found <= exact).all())
    torch.testing.assert_close(found, exact, atol=1e-10, rtol=0)


def test_crown_is_much_tighter_on_an_ordinary_network() -> None:
    network = build("max pooling", 1, torch.float64)
    x, y = torch.rand(8, 1, SIDE, SIDE, dtype=torch.float64), torch.arange(8) % CLASSES
    near, far = leads(network, x, y, 0.02), crown_leads(network, x, y, 0.02)
    finite = near.isfinite()
    gap = (margins(network, x, y) - near)[finite].mean()
    assert float((far - near)[finite].mean()) > 0.5 * float(gap)


WIDE = {
    "pooling": lambda: [
        nn.Conv2d(1, 3, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
    ],
    "strides": lambda: [
        nn.Conv2d(1, 2, 3, padding=1),
        _normed(2),
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.ReLU(),
        _normed(3),
        nn.Conv2d(3, 4, 2, stride=2),
        nn.ReLU(),
    ],
}


@pytest.mark.parametrize("name", WIDE)
def test_windows_give_what_whole_maps_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    network = nn.Sequential(*WIDE[name](), *_head(36)).double().eval().requires_grad_(False)
    x, y = torch.rand(3, 1, 12, 12, dtype=torch.float64), torch.arange(3)
    kept = crown._path
    used = []
    monkeypatch.setattr(crown, "_path", lambda *a: used.append(kept(*a)) or used[-1])
    by_windows = crown_leads(network, x, y, 0.1)
    assert any(window is not None for window, _ in used)
    monkeypatch.setattr(crown, "_path", lambda *a: (None, kept(*a)[1]))
    torch.testing.assert_close(by_windows, crown_leads(network, x, y, 0.1), atol=1e-9, rtol=1e-9)


def test_the_rounding_margin_is_needed_and_covers_rounding() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4096, 3)).eval().requires_grad_(False)
    network[1].weight.mul_(1e4)
    x = torch.rand(16, 1, 64, 64)
    exact = F.linear(x.flatten(1).double(), network[1].weight.double(), network[1].bias.double())
    bare = record(network, ball(x, 0.0, 0.0), 0.0)[-1].box
    wide = record(network, ball(x, 0.0), 1.0)[-1].box
    assert not bool(((bare.low <= exact) & (exact <= bare.high)).all())
    assert bool(((wide.low.double() <= exact) & (exact <= wide.high.double())).all())
    for order in range(20):  # the network's own sum, in other orders
        torch.manual_seed(order)
        p = torch.randperm(4096)
        out = F.linear(x.flatten(1)[:, p], network[1].weight[:, p], network[1].bias)
        assert bool(((wide.low <= out) & (out <= wide.high)).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_box_inside_another_has_no_smaller_lead(name: str, dtype: torch.dtype) -> None:
    network = build(name, 5, dtype)
    x, y = torch.rand(4, 1, SIDE, SIDE, dtype=dtype), torch.arange(4)
    outer = leads(network, x, y, 0.2, num_classes=CLASSES, margin=2.0)
    for number in range(12):
        sign = (2 * torch.rand_like(x) - 1).sign()
        z = (x + (0.15 if number % 3 else 0.2) * sign).clamp(0, 1)
        radius = 0.05 if number % 3 else 0.0
        assert bool((leads(network, z, y, radius, num_classes=CLASSES) >= outer).all())


def test_gradients_reach_the_input() -> None:
    network = build("max pooling", 0, torch.float64)
    x = torch.rand(2, 1, SIDE, SIDE, dtype=torch.float64).mul(0.6).add(0.2).requires_grad_()
    y = torch.tensor([1, 2])

    def value(z: Tensor) -> Tensor:
        return leads(network, z, y, 0.05)[:, 0]

    (gradient,) = torch.autograd.grad(value(x).sum(), x)
    step = torch.zeros_like(x)
    step[:, 0, 3, 4] = 1e-6
    rise = (value(x.detach() + step) - value(x.detach() - step)) / 2e-6
    torch.testing.assert_close(gradient[:, 0, 3, 4], rise, atol=1e-5, rtol=1e-4)


class Scaled(nn.Module):
    """A number, a tensor and a layer that may be exchanged between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.shift, self.head = 1.0, torch.tensor(0.0), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x * self.factor + self.shift - torch.tensor(0.5)).flatten(1))


def test_a_network_is_read_again_when_it_changed_and_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    network, x, y = Scaled().eval(), torch.rand(1, 1, 2, 2), torch.tensor([0])
    names = set(vars(network))
    network.requires_grad_(False)
    for change in (
        {},
        {"factor": -2.0},
        {"shift": torch.tensor(3.0)},
        {"head": nn.Linear(4, 2).requires_grad_(False)},
        {"head": nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).requires_grad_(False)},
    ):
        for name, value in change.items():
            setattr(network, name, value)
        out = network(x)
        found = leads(network, x, y, 0.0)[0, 1]
        torch.testing.assert_close(found, out[0, 0] - out[0, 1], atol=1e-4, rtol=1e-4)
    assert set(vars(network)) == names


class Doubled(nn.Linear):
    """Its forward is not that of its class."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.Sigmoid(), "no bounds for layer Sigmoid"),
        (nn.GELU(), "no bounds for layer GELU"),
        (nn.MaxPool2d(2, dilation=2), "no bounds for layer MaxPool2d"),
        (nn.MaxPool2d(3, ceil_mode=True), "no bounds for layer MaxPool2d"),
        (nn.Conv2d(1, 1, 3, padding="same"), "no bounds for a convolution with padding 'same'"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), "with padding .1, 1. .reflect."),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), "with padding .1, 1. .circular."),
        (nn.ConvTranspose2d(1, 1, 3), "no bounds for layer ConvTranspose2d"),
        (nn.Flatten(0), "no bounds for layer Flatten"),
        (nn.BatchNorm2d(1, track_running_stats=False), "batch norm without running statistics"),
        (nn.GroupNorm(1, 1), "no bounds for layer GroupNorm"),
        (Doubled(8, 8), "no bounds for layer linear"),
    ],
)
def test_layers_without_bounds_are_named(layer: nn.Module, named: str) -> None:
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 2)).eval()
    with pytest.raises((UnsupportedLayerError, ValueError), match=named):
        leads(network, torch.rand(1, 1, 8, 8), torch.tensor([0]), 0.1)


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.BatchNorm2d(1)])
def test_layers_in_training_mode_are_refused(layer: nn.Module) -> None:
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 2))
    name = type(layer).__name__
    with pytest.raises(UnsupportedLayerError, match=rf"{name} \(0\) in training mode; call eval"):
        leads(network, torch.rand(1, 1, 8, 8), torch.tensor([0]), 0.1)


@pytest.mark.parametrize("how", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_layer_with_a_hook_is_refused(how: str) -> None:
    network = build("dense", 0, torch.float32)
    x, y = torch.rand(1, 1, SIDE, SIDE), torch.tensor([0])
    leads(network, x, y, 0.1)
    getattr(network[1], how)(lambda *a: 2 * a[-1] if isinstance(a[-1], Tensor) else None)
    with pytest.raises(UnsupportedLayerError, match=r"no bounds for Linear \(1\): it has hooks"):
        leads(network, x, y, 0.1)


class InPlace(nn.Module):
    """Reads again what an operation in place has changed, which the graph does not tell."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.last = way, nn.Linear(4, 4), nn.Linear(4, 2)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        if self.way == "module":
            return self.last(hidden + self.relu(hidden))
        if self.way == "method":
            hidden.relu_()
            return self.last(hidden)
        other = hidden
        other += 1
        return self.last(hidden)


@pytest.mark.parametrize("way", ["module", "method", "sum"])
def test_what_is_changed_in_place_and_read_again_is_refused(way: str) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(3, 1, 2, 2), torch.zeros(3, dtype=torch.long)
    network = InPlace(way).eval().requires_grad_(False)
    for _ in range(2):
        with pytest.raises(UnsupportedLayerError, match=r"does not compute what torch\.fx reads"):
            leads(network, x, y, 0.1)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).flatten(1)


class Exponents(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp().flatten(1)


class Wider(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.ones(3, 1, 1)).flatten(1)


class Weighted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, x, alpha=2).flatten(1)


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (Branches(), "fx cannot read"),
        (Squares(), "no bounds for layer mul"),
        (Exponents(), "no bounds for layer exp"),
        (Wider(), "no bounds for layer mul with its settings"),
        (Weighted(), "no bounds for layer add with its settings"),
        (Pairs(), "no bounds for a network that returns tuple"),
    ],
)
def test_networks_without_bounds_say_why(network: nn.Module, named: str) -> None:
    with pytest.raises(UnsupportedLayerError, match=named):
        leads(network.eval(), torch.rand(1, 1, 2, 2), torch.tensor([0]), 0.1)


def test_a_sum_too_long_for_its_precision_is_refused() -> None:
    from cpr_wrap.bounds.layers import gamma

    with pytest.raises(ValueError, match="too many for a bound in torch"):
        gamma(4096, torch.zeros(1, dtype=torch.float16))
