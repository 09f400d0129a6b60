"""Networks whose evaluation would mean nothing are refused, or said to be doubtful."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cpr_wrap import input_gradient_report
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.evaluation.preflight import preflight
from cpr_wrap.meter import count_passes
from cpr_wrap.rules import AcceptAll, Confidence, Consistency, CPRWrapper
from cpr_wrap.selective import SelectiveClassifier


class Net(nn.Module):
    """A small network on 4 x 4 images, with a place to go wrong."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(16, 3)
        self.eval()

    def spoil(self, x):
        return x

    def forward(self, x):
        return self.layer(self.spoil(x.flatten(1)))


class Dropping(Net):
    def spoil(self, x):
        return F.dropout(x, 0.5, training=True)


class Clock(Net):
    calls = 0

    def spoil(self, x):
        self.calls += 1
        return x * (1 + 0.1 * self.calls)


class SlowClock(Clock):
    def spoil(self, x):
        self.calls += 1
        return x * (1 + 5e-4 * self.calls)


class Compared(Net):
    def spoil(self, x):
        return (x > 0.5).float()


class Cut(Net):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


class BatchMean(Net):
    def spoil(self, x):
        return x - x.mean(dim=0, keepdim=True)


class BatchNorm(Net):
    def spoil(self, x):
        return F.batch_norm(x, None, None, training=True) if len(x) > 1 else 0 * x


class InPlace(Net):
    def forward(self, x):
        return self.layer(x.flatten(1).mul_(0.5))


class Steps(Net):
    def spoil(self, x):
        return (x * 4).round().detach() / 4 + 0 * x


class Broken(Net):
    def forward(self, x):
        return super().forward(x) + torch.nan


class Endless(Net):
    def forward(self, x):
        return super().forward(x) + torch.inf


def images(count=4):
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def evaluate(network, rule=None, **options):
    x = images()
    y = torch.zeros(len(x), dtype=torch.int64)
    model = SelectiveClassifier(network, rule or AcceptAll())
    return robustness_curve(model, x, y, 0.1, budget="quick", **options)


@pytest.mark.parametrize(
    ("network", "error", "text"),
    [
        (Dropping(), ValueError, "different outputs for the same images: it is random"),
        (Clock(), ValueError, "different outputs for the same images: it is random"),
        (SlowClock(), ValueError, "different outputs for the same images: it is random"),
        (Compared(), ValueError, "outputs have no gradient at its input"),
        (Cut(), ValueError, "outputs have no gradient at its input"),
        (BatchMean(), ValueError, "depend on the rest of the batch"),
        (BatchNorm(), ValueError, "depend on the rest of the batch"),
        (InPlace(), ValueError, "the network changes its input in place"),
        (Broken(), RuntimeError, "outputs are NaN or infinite for 4 of 4 inputs"),
        (Endless(), RuntimeError, "outputs are NaN or infinite for 4 of 4 inputs"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_such_networks_are_refused(network, error, text):
    with pytest.raises(error, match=text):
        evaluate(network)


def test_a_random_rule_is_refused():
    class Random(Confidence):
        stochastic = True

    with pytest.raises(ValueError, match="is random, and random verdicts cannot be evaluated yet"):
        evaluate(Net(), Random(threshold=0.4))


class Noisy(Confidence):
    """Random, and does not say so."""

    name = "noisy"

    def score(self, view):
        return super().score(view) + 0.01 * torch.randn(len(view.z))


class Placed(Noisy):
    """The same noise at every call, but by the place in the batch."""

    def score(self, view):
        noise = torch.randn(len(view.z), generator=torch.Generator().manual_seed(0))
        return Confidence.score(self, view) + 0.01 * noise


class Relative(Noisy):
    def score(self, view):
        score = Confidence.score(self, view)
        return score - score.mean()


class Standardised(Noisy):
    def score(self, view):
        away = Confidence.score(self, view) - Confidence.score(self, view).mean()
        return away / away.square().mean().sqrt()


class Column(Noisy):
    def score(self, view):
        return Confidence.score(self, view)[:, None]


@dataclass(frozen=True, kw_only=True)
class RandomStart(Consistency):
    """CPR that climbs from a random point."""

    name = "random-start"

    def _start(self, x, number):
        return x + self.radius * (2 * torch.rand_like(x) - 1)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Noisy(threshold=0.4), "rule 'noisy' gives the same images different scores: it is random"),
        (
            RandomStart(radius=0.1, steps=2, step_size=0.05),
            "rule 'random-start' gives the same images different",
        ),
        (Placed(threshold=0.4), "rule 'noisy' gives an image another score in a batch than alone"),
        (Relative(), "rule 'noisy' gives an image another score in a batch than alone"),
        (Standardised(), "rule 'noisy' fails on a batch of one image: .* gives NaN as its score"),
        (Column(threshold=0.4), r"rule 'noisy': expected one score per image, shape \(3,\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Confidence) else "",
)
def test_rules_whose_score_is_not_of_the_image_alone_are_refused(rule, text):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=text):
        evaluate(Net(), rule)
    torch.set_rng_state(state)


class Infinite(Confidence):
    """Sure of everything: no two scores can be subtracted."""

    def score(self, view):
        return torch.full_like(super().score(view), torch.inf)


@pytest.mark.parametrize("rule", [Confidence(threshold=0.4), Consistency(radius=0.1), Infinite()])
def test_a_rule_that_looks_at_the_image_alone_passes_at_a_small_price(rule):
    model = SelectiveClassifier(Net(), rule)
    with count_passes() as network_alone:
        preflight(model.with_rule(AcceptAll()), images(8))
    with count_passes() as passes:
        assert preflight(model, images(8)) == ()
    assert passes.total == network_alone.total + 6 * (rule.cost.total - 1)


class Rounded(torch.autograd.Function):
    """The identity, with the rounding of a device that adds up in another order every time."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 1e-6 * torch.randn_like(gradient)


class Chaotic(Net):
    """Eight pixels matter whose gradient is zero but for that rounding."""

    def forward(self, x):
        x = Rounded.apply(x.flatten(1))
        return self.layer(torch.cat([x[:, :8].detach(), x[:, 8:]], dim=1))


def test_rounding_that_a_path_enlarges_is_not_taken_for_a_random_rule():
    model = SelectiveClassifier(Chaotic(), Consistency(radius=0.02, steps=2))
    torch.manual_seed(0)
    gap = (model(images()).score - model(images()).score).abs().max()
    assert gap > 0.001
    preflight(model, images())
    with pytest.raises(ValueError, match="it is random"):
        preflight(model.with_rule(Noisy(threshold=0.4)), images())


def test_gradients_that_vanish_are_said_beside_every_curve():
    with pytest.warns(UserWarning, match="4 of 4 images tried have no input gradient") as told:
        curve = evaluate(Steps())
    assert told[0].filename == __file__  # the line that called, not one of ours or beyond it
    assert any("have no input gradient at all" in note for note in curve.provenance.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(Net()).provenance.notes == ()


@pytest.mark.parametrize("rule", [AcceptAll(), Confidence(threshold=0.4)])
def test_outputs_that_are_no_numbers_are_no_answer(rule):
    model = SelectiveClassifier(Broken(), rule)
    with pytest.raises(RuntimeError, match="NaN or infinite for 4 of 4 inputs, the first in row 0"):
        model(images())


class Edge(Net):
    """No number comes out where a pixel has left the images' range."""

    def forward(self, x):
        return super().forward(x) + torch.where(x.amax() > 0.9, torch.nan, 0.0)


def test_a_score_that_is_no_number_is_no_verdict():
    model = CPRWrapper(Edge(), radius=0.5, steps=2, step_size=0.4)
    x = 0.4 + 0.2 * images()
    assert model.logits(x).isfinite().all()
    with pytest.raises(RuntimeError, match="'cpr' gives NaN as its score, first in row 0"):
        model(x)


class Hidden(Net):
    """No number comes out, and no gradient, but at the images themselves."""

    def forward(self, x):
        far = torch.cdist(x.flatten(1), images().flatten(1).to(x)).amin(dim=1) > 1e-3
        return torch.where(far[:, None], torch.nan, super().forward(x))


def test_outputs_that_only_a_search_sees_are_no_answer_either():
    model, x = SelectiveClassifier(Hidden(), AcceptAll()), images(2)
    y = Net()(x).argmax(dim=1)
    with pytest.raises(RuntimeError, match="NaN or infinite for inputs that an attack tried"):
        robustness_curve(model, x, y, 0.1, budget="quick")


class Overflows(Hidden):
    """The same, but only in the search's cheaper arithmetic."""

    def forward(self, x):
        cheap = torch.is_autocast_enabled("cpu")
        return super().forward(x) if cheap else Net.forward(self, x)


def test_outputs_that_only_cheaper_arithmetic_spoils_are_noted():
    model, x = SelectiveClassifier(Overflows(), AcceptAll()), images(2)
    y = Net()(x).argmax(dim=1)
    curve = robustness_curve(model, x, y, 0.1, budget="quick", dtype="bf16")
    assert any("that an attack tried in bf16" in note for note in curve.provenance.notes)


class Root(torch.autograd.Function):
    """The identity, with a gradient that is NaN at some pixels."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, torch.nan, gradient), None


class Spotted(Net):
    """Every 25th pixel has no gradient that is a number."""

    every = 4

    def spoil(self, x):
        mask = torch.arange(16).expand_as(x) % self.every == 0
        return Root.apply(x, mask)


class Dead(Spotted):
    every = 1


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_a_few_nan_gradients_do_not_stop_an_attack(norm):
    options = {"norm": norm}
    x = images()
    y = Net()(x).argmax(dim=1)
    plain = SelectiveClassifier(Net(), AcceptAll())
    spotted = SelectiveClassifier(Spotted(), AcceptAll())
    eps = 0.5 if norm == "Linf" else 1.2
    found = robustness_curve(plain, x, y, eps, budget="quick", **options).error_at(0.0)
    with pytest.warns(UserWarning, match="25.0% of input gradients are NaN or infinite"):
        curve = robustness_curve(spotted, x, y, eps, budget="quick", **options)
    assert found > 0
    assert curve.error_at(0.0) > 0
    assert any("attacks took as 0" in note for note in curve.provenance.notes)


def test_an_image_without_a_single_number_in_its_gradient_is_an_error():
    x = images()
    y = Net()(x).argmax(dim=1)
    model = SelectiveClassifier(Dead(), AcceptAll())
    with (
        pytest.warns(UserWarning, match="NaN or infinite"),
        pytest.raises(RuntimeError, match="gradient at image 0 is NaN or infinite at every pixel"),
    ):
        robustness_curve(model, x, y, 0.1, budget="quick")


def test_the_report_counts_gradients_that_are_no_numbers():
    with pytest.warns(UserWarning, match="divides by zero"):
        report = input_gradient_report(Spotted(), images())
    assert report.nonfinite == 0.25
    assert input_gradient_report(Net(), images()).nonfinite == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("norm", "eps"), [("L2", 0.8), ("Linf", 10 / 255)])
def test_half_precision_models_do_not_look_robust(dtype, norm, eps):
    """CIFAR-sized: the rounding of half precision must not be taken off the budget."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4)).eval()
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = net(x).argmax(dim=1)
    full = robustness_curve(
        SelectiveClassifier(net, AcceptAll()), x, y, eps, norm=norm, budget="quick"
    )
    half = SelectiveClassifier(nn.Sequential(nn.Flatten(), nn.Linear(3072, 4)).eval(), AcceptAll())
    half.base.load_state_dict(net.state_dict())
    half.base.to(dtype)
    right = half.predict(x) == y
    curve = robustness_curve(half, x[right], y[right], eps, norm=norm, budget="quick")
    assert curve.points.clean.dtype == torch.float32
    assert full.error_at(0.0) >= 0.5
    assert curve.error_at(0.0) >= full.error_at(0.0) - 0.2


def test_a_half_precision_wrapper_keeps_its_points_wide():
    net = Net().to(torch.bfloat16)
    model = CPRWrapper(net, radius=0.1, steps=4, step_size=0.05)
    assert model(images()).logits.dtype == torch.float32
    moved = model.rule.transform(model, images())
    assert moved.dtype == torch.float32
    assert float((moved - images()).abs().max()) == pytest.approx(0.1, abs=1e-6)
    narrow = images().to(torch.bfloat16)
    assert torch.equal(model(narrow).score, model(narrow.float()).score)
