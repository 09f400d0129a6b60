from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from cpr_wrap.data import ImageData
from cpr_wrap.selective import CONFIG, RULES, WEIGHTS
from cpr_wrap.training import AT, METHODS, Losses, Recipe, StandardTraining, train
from cpr_wrap.training.checkpoint import load_state
from cpr_wrap.training.measure import clean_accuracy, pgd_accuracy
from cpr_wrap.training.method import AdversarialMethod, Method
from cpr_wrap.zoo import load
from tests.training.making import (
    assert_same,
    plain_network,
    quick_recipe,
    small_network,
    stripes,
    weights,
)

X, Y = stripes(72)
HELD_OUT = stripes(60, seed=1)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_lowers_its_loss_and_raises_robust_accuracy(name):
    recipe = quick_recipe(name, epochs=8)
    network = small_network(3 + recipe.method.extra_outputs)
    before = pgd_accuracy(network, *HELD_OUT, 3, 0.1)
    result = train(recipe, (X, Y), network=network, validation=HELD_OUT, progress=False)
    assert result.network is network
    assert not network.training
    assert len(result.history) == 8
    # eps is still growing in the first epochs, so compare after that
    assert result.history[-1].loss < result.history[0].loss
    after = pgd_accuracy(network, *HELD_OUT, 3, 0.1)
    # CCAT wants doubt under attack rather than the right class
    assert after > before + 0.3 or name == "ccat"
    assert clean_accuracy(network, *HELD_OUT, 3) > 0.95
    assert result.history[-1].validation_clean == clean_accuracy(network, *HELD_OUT, 3)
    if isinstance(recipe.method, AdversarialMethod):
        assert result.history[-1].validation_robust == pytest.approx(after)
    else:
        assert result.history[-1].validation_robust is None


def test_adversarial_training_is_more_robust_than_standard_training():
    found = {}
    for name in ("standard", "at"):
        network = small_network()
        train(quick_recipe(name, epochs=8), (X, Y), network=network, progress=False)
        found[name] = pgd_accuracy(network, *HELD_OUT, 3, 0.1)
    assert found["at"] > found["standard"] + 0.1


def test_a_single_image_left_over_does_not_stop_batch_norm():
    """The auxiliary head of ATRR has one value a channel, which batch norm refuses of one image."""
    x = nn.functional.pad(X[:17], (1, 1, 1, 1))
    recipe = quick_recipe("atrr", epochs=1, network="lenet-compact")
    result = train(recipe, (x, Y[:17]), num_classes=3, progress=False)
    assert result.network.auxiliary[1].num_batches_tracked == 1


def test_results_do_not_touch_or_depend_on_the_callers_random_state():
    recipe = quick_recipe(epochs=1)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = train(recipe, (X, Y), network=small_network(dropout=0.5), progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    second = train(recipe, (X, Y), network=small_network(dropout=0.5), progress=False)
    assert_same(weights(first.network), weights(second.network))
    other = train(
        replace(recipe, seed=2), (X, Y), network=small_network(dropout=0.5), progress=False
    )
    assert not torch.equal(first.network[0].weight, other.network[0].weight)


def test_tensors_image_data_and_data_sets_are_the_same_to_it():
    recipe = quick_recipe(epochs=1)
    data = ImageData(
        images=X,
        labels=Y,
        indices=torch.arange(len(Y)),
        name="stripes",
        part="train",
        num_classes=3,
    )
    networks = [
        train(recipe, source, network=small_network(), num_classes=3, progress=False).network
        for source in ((X, Y), data, TensorDataset(X, Y))
    ]
    assert_same(weights(networks[0]), weights(networks[1]))
    assert_same(weights(networks[0]), weights(networks[2]))


class Exploding(nn.Module):
    """Fine for some batches, then not a number."""

    def __init__(self, good):
        super().__init__()
        self.network = plain_network()
        self.good = good
        self.calls = 0

    def forward(self, x):
        outputs = self.network(x)
        self.calls += self.training
        return outputs * torch.nan if self.calls > self.good else outputs


def test_nan_stops_with_the_last_good_state_kept(tmp_path):
    recipe = quick_recipe("standard")
    with pytest.raises(RuntimeError, match=r"the loss is nan in epoch 2, batch 3.*last good state"):
        train(recipe, (X, Y), network=Exploding(7), out=tmp_path, save_seconds=0, progress=False)
    state = load_state(tmp_path)
    assert (state["epoch"], state["batch"]) == (1, 2)
    assert all(t.isfinite().all() for t in state["network"].values())
    assert not (tmp_path / WEIGHTS).exists()


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    class Steep(Method):
        """A loss of zero with a gradient that is not a number."""

        name = "steep"

        def loss(self, network, x, y, keys):
            return Losses(rows=(network(x) * 0).sqrt().sum(dim=1))

    recipe = replace(quick_recipe("standard", epochs=1, batch_size=len(X)), method=Steep())
    with pytest.raises(RuntimeError, match=r"a weight is not finite .* diverged\. Lower lr"):
        train(recipe, (X, Y), network=plain_network(), progress=False)
    with pytest.raises(RuntimeError, match=r"a weight is not finite .* Lower lr, or warm eps"):
        train(recipe, (X, Y), network=plain_network(), out=tmp_path, save_seconds=0, progress=False)
    assert load_state(tmp_path) is None


@pytest.mark.parametrize("name", METHODS)
def test_what_is_written_loads_with_the_rule_of_the_method(tmp_path, name):
    recipe = quick_recipe(name, epochs=1, network="lenet-compact", reject_rate=0.1)
    x = nn.functional.pad(X, (1, 1, 1, 1))  # LeNet wants a multiple of four
    result = train(recipe, (x, Y), validation=(x, Y), out=tmp_path / "run", progress=False)
    model = load(f"local:{tmp_path / 'run'}")
    assert isinstance(model.rule, RULES[recipe.method.rule_name])
    assert torch.allclose(model.outputs(x), result.network(x), atol=1e-6)  # other strides
    config = json.loads((tmp_path / "run" / CONFIG).read_text())
    assert config["recipe"]["method"]["name"] == name
    assert config["recipe"]["seed"] == 1
    assert config["input_shape"] == [1, 8, 8]
    assert len(config["history"]) == 1
    if recipe.method.rule_name in ("confidence", "atrr"):
        selection = model(x)
        right = selection.predicted == Y
        rejected = (~selection.accepted & right).sum()
        assert rejected <= 0.1 * right.sum()
        assert model.rule.threshold > 0


def test_early_stop_keeps_the_best_epoch(tmp_path):
    class Overfit(AT):
        """Learns, and from the third epoch on unlearns."""

        def loss(self, network, x, y, keys):
            losses = super().loss(network, x, y, keys)
            return Losses(rows=losses.rows * self.sign, adversarial=losses.adversarial)

        def scaled(self, factor):
            return self

        sign = 1

    steps = 5
    calls = []

    class Turning(Overfit):
        @property
        def sign(self):
            calls.append(1)
            return 1 if len(calls) <= 3 * steps else -1

    recipe = replace(quick_recipe(epochs=20), method=Turning(eps=0.1, steps=2), warmup=0.0)
    result = train(
        recipe,
        (X, Y),
        network=small_network(),
        validation=HELD_OUT,
        early_stop=2,
        out=tmp_path,
        progress=False,
    )
    robust = [record.validation_robust for record in result.history]
    best = robust.index(max(robust))
    assert len(robust) == best + 3 < 20
    found = pgd_accuracy(result.network, *HELD_OUT, 3, 0.1)
    assert found == pytest.approx(max(robust))


def test_bfloat16_and_compile_are_options():
    recipe = quick_recipe(epochs=2)
    plain = train(recipe, (X, Y), network=plain_network(), progress=False)
    half = train(recipe, (X, Y), network=plain_network(), amp=True, progress=False)
    ours, theirs = plain.network[1].weight, half.network[1].weight
    assert theirs.dtype == torch.float32
    assert not torch.equal(ours, theirs)
    assert torch.allclose(ours, theirs, atol=0.05)


def test_compiled_network_learns_the_same(monkeypatch):
    compiled = []

    def fake(network):
        compiled.append(network)
        return network

    monkeypatch.setattr(torch, "compile", fake)
    recipe = quick_recipe(epochs=1)
    network = plain_network()
    train(recipe, (X, Y), network=network, compile=True, progress=False)
    assert compiled == [network]


def test_eps_is_warmed_up_and_the_learning_rate_goes_down():
    seen = []

    class Spy(AT):
        def loss(self, network, x, y, keys):
            seen.append((self.eps, self.pgd.step_size))
            return super().loss(network, x, y, keys)

    recipe = Recipe(
        method=Spy(eps=0.2, steps=2, step_size=0.1), epochs=2, batch_size=18, lr=0.1, warmup=0.5
    )
    train(recipe, (X, Y), network=plain_network(), progress=False)
    assert [eps for eps, _ in seen] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2, 0.2, 0.2])
    assert all(step == pytest.approx(eps / 2) for eps, step in seen)


def test_progress_is_shown_on_standard_error(capsys):
    train(quick_recipe(epochs=2), (X, Y), network=plain_network(), validation=HELD_OUT)
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 2/2: loss" in err
    assert "PGD" in err


def test_a_recipe_can_be_named():
    with pytest.raises(LookupError, match="unknown recipe 'mnist-compact-att'"):
        train("mnist-compact-att", (X, Y), progress=False)


def test_what_cannot_work_is_refused_before_any_step():
    with pytest.raises(ValueError, match=r"expected outputs for 3 classes and 1 more .*, got 3"):
        train(quick_recipe("rcd"), (X, Y), network=plain_network(3), progress=False)
    with pytest.raises(ValueError, match=r"does not take images of shape \(1, 1, 4, 4\)"):
        train(quick_recipe(), (X[..., :4, :4], Y), network=plain_network(), progress=False)
    with pytest.raises(ValueError, match="early_stop watches robust accuracy"):
        train(quick_recipe(), (X, Y), network=plain_network(), early_stop=2, progress=False)
    with pytest.raises(ValueError, match="this one is 'standard'"):
        train(
            quick_recipe("standard"),
            (X, Y),
            network=plain_network(),
            validation=HELD_OUT,
            early_stop=2,
            progress=False,
        )
    with pytest.raises(ValueError, match="early_stop: expected at least 1 epoch, got 0"):
        train(
            quick_recipe(),
            (X, Y),
            network=plain_network(),
            validation=HELD_OUT,
            early_stop=0,
            progress=False,
        )


def test_a_last_softmax_is_told():
    network = nn.Sequential(plain_network(), nn.Softmax(dim=1))
    with pytest.warns(UserWarning, match="leave out the last softmax"):
        train(quick_recipe(epochs=1), (X, Y), network=network, progress=False)
    assert not network.training


def test_a_method_of_ones_own_is_enough():
    class Smoothed(Method):
        name = "smoothed"

        def loss(self, network, x, y, keys):
            rows = nn.functional.cross_entropy(network(x), y, label_smoothing=0.1, reduction="none")
            return Losses(rows=rows)

    recipe = Recipe(method=Smoothed(), epochs=6, batch_size=16)
    result = train(recipe, (X, Y), network=small_network(), progress=False)
    assert result.history[-1].loss < result.history[0].loss
    assert (result.history[-1].clean, result.history[-1].adversarial) == (None, None)


def test_the_recipes_own_data_and_network(monkeypatch):
    from cpr_wrap.training import loop

    asked = []

    def fake(name, part):
        asked.append((name, part))
        return ImageData(
            images=nn.functional.pad(X, (1, 1, 1, 1)),
            labels=Y,
            indices=torch.arange(len(Y)),
            name=name,
            part=part,
            num_classes=10,
        )

    monkeypatch.setattr(loop, "load_data", fake)
    recipe = Recipe(
        method=StandardTraining(), network="lenet-compact", dataset="mnist", epochs=1, batch_size=24
    )
    result = train(recipe, progress=False)
    assert asked == [("mnist", "train"), ("mnist", "validation")]
    assert result.network(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    assert result.history[0].validation_clean is not None
