from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpr_wrap.objective import doubt, log_prob
from cpr_wrap.rules.cpr import (
    Consistency,
    CPRWrapper,
    consistent_mistake,
    disagreement,
    low_confidence_twice,
)
from cpr_wrap.selective import REJECT
from tests.toys import Curved, Island, Line, Plane, pixels

norms = pytest.mark.parametrize("norm", ["Linf", "L2"])


def line(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def naive(network, x, radius, steps, step_size, keep="last", norm="Linf"):
    """Algorithm 1 of the paper, in as few lines as it takes. Gives T(x) and the verdict."""
    predicted = network(x).argmax(1)
    points = [x]
    for _ in range(steps):
        z = points[-1].clone().requires_grad_()
        nn.functional.cross_entropy(network(z), predicted, reduction="sum").backward()
        g = z.grad.sign() if norm == "Linf" else z.grad / z.grad.flatten(1).norm(dim=1)[:, None]
        move = points[-1] + step_size * g - x
        length = move.flatten(1).norm(dim=1)[:, None]
        inside = move * (radius / length).clamp(max=1)
        points.append((x + (move.clamp(-radius, radius) if norm == "Linf" else inside)).clamp(0, 1))
    if keep == "best":
        loss = nn.CrossEntropyLoss(reduction="none")
        values = torch.stack([loss(network(z), predicted) for z in points])
        points = [*points, torch.stack(points)[values.argmax(0), torch.arange(len(x))]]
    return points[-1].detach(), network(points[-1]).argmax(1) == predicted


# One dimension: T(x) walks min(radius, steps · step_size) towards the boundary at 0.5.


@norms
@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize(
    ("radius", "steps", "step_size", "walk"),
    [(0.1, 3, 0.05, 0.1), (0.1, 4, 0.02, 0.08), (0.1, 1, 0.5, 0.1)],
)
def test_t_on_the_line(norm, keep, radius, steps, step_size, walk):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the second case cannot reach its radius
        model = CPRWrapper(Line(), radius, steps, step_size, norm, keep)
    x = line(0.05, 0.45, 0.55, 0.95)
    moved = model.rule.transform(model, x)
    assert torch.allclose(moved, line(0.05 + walk, 0.45 + walk, 0.55 - walk, 0.95 - walk))
    # The score is the lead of the predicted class at T(x): 2 · (distance - walk).
    expected = 2 * (torch.tensor([0.45, 0.05, 0.05, 0.45], dtype=torch.float64) - walk)
    assert torch.allclose(model(x).score, expected)
    assert model.predict(x).tolist() == [0, REJECT, REJECT, 1]


@norms
def test_the_line_rejects_exactly_within_its_radius(norm):
    model = CPRWrapper(Line(), radius=0.1, steps=10, step_size=0.02, norm=norm)
    x = torch.linspace(0, 1, 1000, dtype=torch.float64)[:, None]  # no point at distance 0.1
    selection = model(x)
    assert torch.equal(selection.accepted, (x[:, 0] - 0.5).abs() > 0.1)
    assert torch.equal(selection.predicted, (x[:, 0] > 0.5).long())


def test_t_stays_in_the_range_of_pixels():
    class Cliff(Line):
        def forward(self, x):
            return super().forward(x + 0.45)  # the boundary at 0.05

    model = CPRWrapper(Cliff(), radius=0.1, steps=10, step_size=0.02)
    x = line(0.08)
    assert torch.equal(model.rule.transform(model, x), line(0.0))
    assert model.predict(x).tolist() == [REJECT]


@pytest.mark.parametrize(("x", "label"), [(0.25, 0), (0.75, REJECT)])
def test_on_an_exact_tie_arg_max_decides(x, label):
    # One step of 0.25 ends on the boundary, where both logits are 0 and arg max says class 0.
    model = CPRWrapper(Line(), radius=0.25, steps=1, step_size=0.25)
    moved = model.rule.transform(model, line(x))
    assert model.base(moved).tolist() == [[0.0, 0.0]]
    assert model.predict(line(x)).tolist() == [label]


def test_last_and_best_differ_where_a_step_leads_past_the_peak():
    settings = {"radius": 0.12, "steps": 2, "step_size": 0.06}
    x = line(0.4)  # visits 0.46 on the island and 0.52 beyond it
    last = CPRWrapper(Island(), keep="last", **settings)
    best = CPRWrapper(Island(), keep="best", **settings)
    assert torch.allclose(last.rule.transform(last, x), line(0.52))
    assert torch.allclose(best.rule.transform(best, x), line(0.46))
    assert last.predict(x).tolist() == [0]
    assert best.predict(x).tolist() == [REJECT]


# Two dimensions.


@pytest.mark.parametrize(
    ("norm", "step", "reach"),
    [("Linf", torch.ones(2).double(), 1.4), ("L2", Plane.NORMAL, 1.0)],
)
def test_t_and_verdict_in_the_plane(norm, step, reach):
    model = CPRWrapper(Plane(), radius=0.08, steps=4, step_size=0.03, norm=norm)
    x = 0.1 + 0.8 * pixels(500, 2)  # off the pixel bounds by more than the radius
    side = Plane.distance(x).sign()
    expected = x - 0.08 * side[:, None] * step
    assert torch.allclose(model.rule.transform(model, x), expected)
    # Linf moves every pixel by the radius, so it covers the L1 norm of the normal.
    accepted = Plane.distance(x).abs() > 0.08 * reach
    assert torch.equal(model(x).accepted, accepted)
    assert 0 < accepted.sum() < len(x)


@norms
@pytest.mark.parametrize("keep", ["last", "best"])
def test_agrees_with_a_naive_implementation_on_a_curved_network(norm, keep):
    network = Curved()
    settings = {"radius": 0.3, "steps": 7, "step_size": 0.07, "norm": norm, "keep": keep}
    x = pixels(200, 4)
    moved, accepted = naive(network, x, **settings)
    model = CPRWrapper(network, **settings)
    assert torch.allclose(model.rule.transform(model, x), moved)
    assert torch.equal(model(x).accepted, accepted)
    assert 0 < accepted.sum() < len(x)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_t_can_be_asked_for_without_grad_mode(around):
    model = CPRWrapper(Curved(), radius=0.3, steps=3, step_size=0.1)
    expected = model.rule.transform(model, pixels(5))
    with around():
        assert torch.equal(model.rule.transform(model, pixels(5)), expected)


# What a prediction costs, counted without our own counter.


def count_calls(network):
    calls = {"forward": 0, "backward": 0}

    def forward(module, inputs, output):
        calls["forward"] += len(inputs[0])

    def backward(module, grad_input, grad_output):
        calls["backward"] += len(grad_output[0])
        assert grad_input[0] is not None

    network.register_forward_hook(forward)
    network.register_full_backward_hook(backward)
    return calls


@norms
@pytest.mark.parametrize(("keep", "extra"), [("last", 0), ("best", 1)])
@pytest.mark.parametrize("steps", [1, 5])
def test_cost_of_a_prediction(norm, keep, extra, steps):
    network = Curved()
    calls = count_calls(network)
    CPRWrapper(network, radius=0.1, steps=steps, step_size=0.1, norm=norm, keep=keep)(pixels(3))
    # x_0 … x_m forward and x_0 … x_{m-1} backward; "best" must look at x_m before it chooses.
    assert calls == {"forward": 3 * (steps + 1 + extra), "backward": 3 * steps}


class SeeBackward(TorchDispatchMode):
    """Notes which gradients each convolution is asked for: (input, weight, bias)."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution_backward.default:
            self.masks.append(tuple(args[-1]))
        return func(*args, **(kwargs or {}))


def test_no_parameter_gradient_is_computed():
    network = nn.Sequential(nn.Conv2d(1, 4, 2, padding=1), nn.Conv2d(4, 3, 3), nn.Flatten()).eval()
    model = CPRWrapper(network, radius=0.1, steps=3, step_size=0.1)
    x = pixels(2).float()
    with SeeBackward() as plain:
        network(x.clone().requires_grad_()).sum().backward()
    assert plain.masks == [(True, True, True)] * 2  # what an ordinary backward asks for
    network.zero_grad(set_to_none=True)
    with SeeBackward() as ours:
        model(x)
    assert ours.masks == [(True, False, False)] * 2 * 3
    assert all(p.grad is None for p in network.parameters())


def test_a_prediction_holds_one_graph_at_a_time():
    network = Curved()
    model = CPRWrapper(network, radius=0.2, steps=4, step_size=0.06)
    x = pixels(3).requires_grad_()
    outputs = model.outputs(x)
    model.rule.transform(model, x, outputs)
    torch.autograd.grad(outputs.sum(), x, retain_graph=True)  # the caller's graph is intact
    model.rule.score(model, x, outputs)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(outputs.sum(), x)


# What attacks read.


@norms
def test_view_reads_t_straight_through(norm):
    network = Curved()
    model = CPRWrapper(network, radius=0.2, steps=4, step_size=0.06, norm=norm)
    z = pixels(6).requires_grad_()
    calls = count_calls(network)
    view = model.rule.view(model, z, shadow=True)
    assert calls == {"forward": 6 * 5, "backward": 6 * 4}  # the verdict comes free
    moved = model.rule.transform(model, z.detach())
    assert torch.equal(view.outputs, network(z))
    assert torch.allclose(view.shadow, network(moved), atol=1e-12)
    assert torch.equal(view.accepted, model(z.detach()).accepted)
    assert view.num_classes == 3
    # The gradient at T(z) passes to z as if T were the identity.
    (through,) = torch.autograd.grad(view.shadow[:, 0].sum(), z, retain_graph=True)
    leaf = moved.requires_grad_()
    (at_t,) = torch.autograd.grad(network(leaf)[:, 0].sum(), leaf)
    assert torch.allclose(through, at_t, atol=1e-12)
    (plain,) = torch.autograd.grad(view.outputs[:, 0].sum(), z)  # this graph is left intact
    assert not torch.allclose(plain, at_t, atol=1e-3)


def test_view_without_shadow_costs_one_forward():
    network = Curved()
    calls = count_calls(network)
    model = CPRWrapper(network, radius=0.2, steps=4, step_size=0.06)
    view = model.rule.view(model, pixels(6).requires_grad_())
    assert calls == {"forward": 6, "backward": 0}
    assert view.shadow is None
    assert view.accepted is None


def test_objectives_by_hand():
    model = CPRWrapper(Line(slope=2), radius=0.2, steps=2, step_size=0.1)
    z = line(0.6).requires_grad_()  # T(z) = 0.4; class 1 leads by 0.4 at z and by -0.4 at T(z)
    view = model.rule.view(model, z, shadow=True)
    y, target = torch.tensor([1]), torch.tensor([0])
    p = torch.tensor(0.4, dtype=torch.float64).sigmoid()  # of class 1 at z and class 0 at T(z)
    here, there = disagreement.terms(view, y, target)
    assert torch.allclose(here.exp(), 1 - p)
    assert torch.allclose((-there).exp(), p)
    here, there = consistent_mistake.terms(view, y, target)
    assert torch.allclose(here.exp(), 1 - p)
    assert torch.allclose(there.exp(), p)
    here, there = low_confidence_twice.terms(view, y, target)
    # Logits ±0.2: log(e^.2 + e^-.2) minus the smooth maximum, which is 0.2 to the last bit.
    expected = torch.tensor([0.2, -0.2], dtype=torch.float64).logsumexp(0) - 0.2
    assert torch.allclose(here, expected)
    assert torch.allclose(there, expected)
    assert torch.equal(here, doubt(view.logits))
    assert torch.equal(log_prob(view.shadow_logits, target).exp() > 0.5, torch.tensor([True]))


def test_stand_in_takes_one_step_to_the_edge():
    rule = Consistency(radius=0.1, steps=20, step_size=0.01, norm="L2", keep="best")
    cheap = rule.stand_in()
    assert (cheap.steps, cheap.step_size, cheap.radius) == (1, 0.1, 0.1)
    assert (cheap.norm, cheap.keep) == ("L2", "last")
    model = CPRWrapper(Plane())
    x = 0.2 + 0.6 * pixels(50, 2)
    assert torch.allclose(rule.transform(model, x), cheap.transform(model, x))  # linear: the same


# Settings.


def test_defaults_are_the_papers_for_colour_images():
    assert CPRWrapper(Line()).rule == Consistency(
        radius=0.0055, steps=10, step_size=0.001, norm="Linf", keep="last", threshold=0.0
    )


def test_a_radius_out_of_reach_is_said():
    with pytest.warns(
        UserWarning, match=r"3 steps of 0.01 cover 0.03, radius is 0.1, so that part"
    ):
        Consistency(radius=0.1, steps=3, step_size=0.01)


@pytest.mark.parametrize("steps", [3, 10, 70])
def test_a_radius_just_in_reach_is_not_warned_about(steps):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Consistency(radius=0.01 * steps, steps=steps, step_size=0.01)
        Consistency(radius=steps / 100, steps=steps, step_size=0.01)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"radius": 0}, ValueError, "radius: expected a finite number above 0, got 0"),
        ({"radius": -0.1}, ValueError, "radius: expected a finite number above 0, got -0.1"),
        ({"steps": 0}, ValueError, "steps: expected at least 1, got 0"),
        ({"step_size": 0.0}, ValueError, "step_size: expected a finite number above 0, got 0.0"),
        ({"norm": "l2"}, LookupError, "unknown norm 'l2'. Did you mean 'L2'"),
        ({"keep": "first"}, ValueError, "keep: expected 'last' or 'best', got 'first'"),
    ],
)
def test_bad_settings_are_named(settings, error, text):
    with pytest.raises(error, match=text):
        Consistency(**settings)


def test_settings_are_frozen_values():
    rule = Consistency()
    with pytest.raises(AttributeError, match="cannot assign to field 'radius'"):
        rule.radius = 0.1
    assert replace(rule, radius=0.01) != rule == Consistency()
