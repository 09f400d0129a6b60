from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpr_wrap.meter import count_passes
from cpr_wrap.objective import Aim, doubt, log_prob
from cpr_wrap.rules.cpr import (
    Consistency,
    CPRWrapper,
    consistent_mistake,
    disagreement,
    low_confidence_twice,
)
from cpr_wrap.selective import REJECT, rule_config
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


# One dimension: T(x) walks min(radius, steps · step_size) toward the boundary at 0.5.


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


# What attacks read.


@norms
def test_view_reads_t_straight_through(norm):
    network = Curved()
    model = CPRWrapper(network, radius=0.2, steps=4, step_size=0.06, norm=norm)
    z = pixels(6).requires_grad_()
    calls = count_calls(network)
    view = model.rule.view(model, z, path=(0.5, 1.0))
    # z itself, T's four steps, and the two points that were asked for; the verdict comes free.
    assert calls == {"forward": 6 * 7, "backward": 6 * 4}
    moved = model.rule.transform(model, z.detach())
    assert torch.equal(view.outputs, network(z))
    halfway = CPRWrapper(network, radius=0.2, steps=2, step_size=0.06, norm=norm)
    assert torch.equal(view.points[0], halfway.rule.transform(halfway, z.detach()))
    assert torch.allclose(view.path[-1], network(moved), atol=1e-12)
    assert torch.equal(view.accepted, model(z.detach()).accepted)
    assert view.num_classes == 3
    # The gradient at T(z) passes to z as if T were the identity.
    (through,) = torch.autograd.grad(view.path[-1][:, 0].sum(), z, retain_graph=True)
    leaf = moved.requires_grad_()
    (at_t,) = torch.autograd.grad(network(leaf)[:, 0].sum(), leaf)
    assert torch.allclose(through, at_t, atol=1e-12)
    (plain,) = torch.autograd.grad(view.outputs[:, 0].sum(), z)  # this graph is left intact
    assert not torch.allclose(plain, at_t, atol=1e-3)


def test_a_view_that_nobody_asked_a_verdict_of_costs_one_forward():
    network = Curved()
    calls = count_calls(network)
    model = CPRWrapper(network, radius=0.2, steps=4, step_size=0.06)
    view = model.rule.view(model, pixels(6).requires_grad_(), verdict=False)
    assert calls == {"forward": 6, "backward": 0}
    assert view.path == ()
    assert view.accepted is None


def test_objectives_by_hand():
    model = CPRWrapper(Line(slope=2), radius=0.2, steps=2, step_size=0.1)
    z = line(0.6).requires_grad_()  # T(z) = 0.4; class 1 leads by 0.4 at z and by -0.4 at T(z)
    target = torch.tensor([0])
    view = replace(model.rule.view(model, z), aim=Aim(torch.tensor([1]), target))
    p = torch.tensor(0.4, dtype=torch.float64).sigmoid()  # of class 1 at z and class 0 at T(z)
    here, there = disagreement.terms(view)
    assert torch.allclose(here.exp(), 1 - p)
    assert torch.allclose((-there).exp(), p)
    here, there = consistent_mistake.terms(view)
    assert torch.allclose(here.exp(), 1 - p)
    assert torch.allclose(there.exp(), p)
    here, there = low_confidence_twice.terms(view)
    # Logits ±0.2: log(e^.2 + e^-.2) minus the smooth maximum, which is 0.2 to the last bit.
    expected = torch.tensor([0.2, -0.2], dtype=torch.float64).logsumexp(0) - 0.2
    assert torch.allclose(here, expected)
    assert torch.allclose(there, expected)
    assert torch.equal(here, doubt(view.logits))
    assert torch.equal(log_prob(view.end_logits, target).exp() > 0.5, torch.tensor([True]))


def test_stand_in_takes_one_step_to_the_edge():
    rule = Consistency(radius=0.1, steps=20, step_size=0.01, norm="L2", keep="best")
    cheap = rule.stand_in()
    assert (cheap.steps, cheap.step_size, cheap.radius) == (1, 0.1, 0.1)
    assert (cheap.norm, cheap.keep) == ("L2", "last")
    model = CPRWrapper(Plane())
    x = 0.2 + 0.6 * pixels(50, 2)
    assert torch.allclose(rule.transform(model, x), cheap.transform(model, x))  # linear: the same


# Stronger checks by the defender.


def test_any_rejects_where_the_prediction_changes_on_the_way():
    settings = {"radius": 0.12, "steps": 2, "step_size": 0.06}
    x = line(0.4)  # visits 0.46 on the island and 0.52 beyond it
    end, every = CPRWrapper(Island(), **settings), CPRWrapper(Island(), verdict="any", **settings)
    assert end.predict(x).tolist() == [0]
    assert every.predict(x).tolist() == [REJECT]
    assert every.rule.cost.total == end.rule.cost.total
    # On the island class 1 leads by 2 · (0.025 - |0.46 - 0.475|).
    assert every(x).score.item() == pytest.approx(-0.02)


def test_further_starts_only_reject_more():
    x, settings = pixels(300, 4), {"radius": 0.3, "steps": 3, "step_size": 0.1}
    one, three = CPRWrapper(Curved(), **settings), CPRWrapper(Curved(), starts=3, **settings)
    assert (three(x).accepted <= one(x).accepted).all()
    assert (three(x).score <= one(x).score).all()
    assert (three(x).accepted < one(x).accepted).any()
    with count_passes() as passes:
        three(x)
    assert (passes.forwards, passes.backwards) == (3 * 4 * 300, 3 * 3 * 300)


def test_a_path_made_for_a_target_judges_only_where_it_is_predicted():
    model = CPRWrapper(Line(), radius=0.1, steps=2, step_size=0.05)
    z, target = line(0.7, 0.3), torch.tensor([1, 1])
    view = model.rule.view(model, z, label=target)
    assert torch.allclose(view.points[-1], line(0.6, 0.2))  # away from class 1 in both rows
    assert view.accepted.tolist() == [True, False]


@pytest.mark.parametrize(
    ("x", "rule", "phrase"),
    [
        (0.1, {}, "the prediction holds within 0.2, by 0.4"),
        (0.45, {}, "the prediction changes to one at T(x), by 0.3"),
    ],
)
def test_a_verdict_is_explained(x, rule, phrase):
    model = CPRWrapper(Line(), radius=0.2, steps=2, step_size=0.1, **rule)
    names = ["zero", "one"]
    assert model.rule.explain(model.look(line(x)), names.__getitem__) == [phrase]


def test_settings_from_arrays_become_plain_numbers():
    rule = Consistency(radius=np.float32(0.25), steps=4, step_size=torch.tensor(0.125))
    assert json.dumps(rule_config(rule))
    assert (rule.radius, rule.step_size) == (0.25, 0.125)


# Settings.


def test_defaults_are_the_papers_for_colour_images():
    rule = CPRWrapper(Line()).rule
    assert rule == Consistency(radius=0.0055, steps=10, norm="Linf", keep="last", threshold=0.0)
    assert rule.pgd.step_size == 0.001
    assert replace(rule, step_size=0.001).pgd == rule.pgd


def test_a_radius_alone_brings_its_step_size():
    assert CPRWrapper(Line(), radius=0.1).rule.pgd.step_size == pytest.approx(0.025)
    rule = Consistency(radius=0.1, steps=20)
    assert rule.pgd.step_size == pytest.approx(0.0125)
    assert replace(rule, radius=0.2).pgd.step_size == pytest.approx(0.025)


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
        ({"steps": 0}, ValueError, "steps: expected a whole number of at least 1, got 0"),
        ({"steps": 1.5}, ValueError, "steps: expected a whole number of at least 1, got 1.5"),
        ({"steps": True}, ValueError, "steps: expected a whole number"),
        ({"radius": True}, TypeError, "radius: expected a number, got True"),
        ({"radius": "0.1"}, TypeError, "radius: expected a number, got '0.1'"),
        ({"step_size": 0.0}, ValueError, "step_size: expected a finite number above 0, got 0.0"),
        ({"norm": "L7"}, LookupError, "unknown threat model 'L7'. .*Known: L2, Linf"),
        ({"verdict": "all"}, ValueError, "verdict: expected 'end' or 'any', got 'all'"),
        ({"starts": 0}, ValueError, "starts: expected a whole number of at least 1, got 0"),
        ({"threshold": math.nan}, ValueError, "threshold: expected a finite number, got nan"),
        ({"keep": "first"}, ValueError, "keep: expected 'last' or 'best', got 'first'"),
        ({"smooth": "no"}, TypeError, "smooth: expected True or False, got 'no'"),
        ({"threshold": "0"}, TypeError, "threshold: expected a number, got '0'"),
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
