"""Models on disk."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cpr_wrap.networks import build_network
from cpr_wrap.rules import Confidence, Consistency, CPRWrapper
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.zoo import bundled, load, load_network
from tests.toys import Line

SOURCE = {"network": "lenet-compact", "network_settings": {"num_outputs": 4}}


@pytest.fixture
def network():
    return build_network("lenet-compact", seed=3, num_outputs=4).eval()


@pytest.fixture
def saved(network, tmp_path):
    source = {**SOURCE, "num_classes": 4, "input_shape": [1, 28, 28], "eps": 0.3}
    return SelectiveClassifier(network, Confidence(threshold=0.75), source).save(tmp_path / "run")


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


# Saved folders


@pytest.mark.parametrize("form", ["local:{}", "{}"])
def test_saved_folder(saved, network, form):
    model = load(form.format(saved))
    assert same_weights(model.base, network)
    assert model.rule == Confidence(threshold=0.75)
    assert not model.base.training


def test_path_object(saved, network):
    assert same_weights(load(saved).base, network)


def test_what_a_folder_knows(saved):
    found = load_network(saved)
    assert found.input_shape == (1, 28, 28)
    assert (found.num_classes, found.eps, found.norm) == (4, 0.3, None)


def test_saving_again_keeps_everything(saved, tmp_path):
    again = load(saved).save(tmp_path / "again")
    assert json.loads((again / "config.json").read_text()) == json.loads(
        (saved / "config.json").read_text()
    )


def test_own_rule_with_other_settings_and_another_rule(saved):
    assert load(saved, threshold=0.5).rule == Confidence(threshold=0.5)
    assert load(saved, rule="cpr", radius=0.01, steps=20).rule == Consistency(radius=0.01, steps=20)


def test_without_weights(saved, network):
    (saved / "model.safetensors").unlink()
    assert not same_weights(load(saved, pretrained=False).base, network)


def test_ones_own_network(tmp_path):
    own = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    saved = CPRWrapper(own).save(tmp_path / "own")
    with pytest.raises(ValueError, match="names neither a network nor the address of a base"):
        load(saved)
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    before = fresh[1].weight.clone()
    model = load(saved, network=fresh)
    assert same_weights(model.base, own)
    assert torch.equal(fresh[1].weight, before)  # what was brought is not changed
    assert fresh.training


def test_a_base_given_by_its_address(saved, network, tmp_path):
    model = SelectiveClassifier(network, Consistency(), {"base": f"local:{saved}"})
    with torch.no_grad():
        network[0].bias.add_(1)
    found = load_network(model.save(tmp_path / "tuned"))
    assert same_weights(found.network, network)
    assert found.input_shape == (1, 28, 28)  # from the base
    assert found.rule == Consistency()


def test_shared_weights(tmp_path):
    tied = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.Linear(3, 3)).eval()
    tied[2].weight = tied[1].weight
    saved = CPRWrapper(tied).save(tmp_path / "tied")
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.Linear(3, 3))
    fresh[2].weight = fresh[1].weight
    assert same_weights(load(saved, network=fresh).base, tied)


# Files of weights


@pytest.mark.parametrize("wrap", [dict, lambda s: {"state_dict": s, "epoch": 3}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_pickled_state_dict(network, tmp_path, wrap, prefix):
    state = {prefix + name: value for name, value in network.state_dict().items()}
    torch.save(wrap(state), tmp_path / "weights.pt")
    model = load(
        f"local:{tmp_path / 'weights.pt'}",
        network="lenet-compact",
        network_settings={"num_outputs": 4},
    )
    assert same_weights(model.base, network)
    assert model.rule == Consistency()
    assert model.source == SOURCE  # so that it can be saved and loaded again


def test_safetensors_file(network, tmp_path):
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    model = load(f"local:{tmp_path / 'weights.safetensors'}", network=network)
    assert same_weights(model.base, network)
    assert model.base is not network


def test_file_without_weights(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"")
    model = load(f"local:{tmp_path / 'weights.pt'}", network=Line(), pretrained=False)
    assert same_weights(model.base, Line())


# Bad input


def test_nothing_there(tmp_path):
    with pytest.raises(LookupError, match="expected a file of weights or a saved folder, got none"):
        load(f"local:{tmp_path / 'nowhere.pt'}")


def test_file_without_a_network(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pass network=.*lenet-compact"):
        load(f"local:{tmp_path / 'weights.pt'}")


def test_folder_without_a_config(tmp_path):
    with pytest.raises(LookupError, match=r"found no config\.json"):
        load(f"local:{tmp_path}")


def test_folder_without_weights(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(LookupError, match=r"expected a file of weights, got .*does not exist"):
        load(saved)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", RuntimeError, r"config.json is damaged: it is not JSON"),
        ("[]", ValueError, "expected a JSON object, got list"),
        ('{"rule": {"radius": 1}}', ValueError, "needs its name"),
        ('{"network": "lenet-compct"}', LookupError, "Did you mean 'lenet-compact'"),
    ],
)
def test_bad_config(saved, text, error, message):
    (saved / "config.json").write_text(text)
    with pytest.raises(error, match=message):
        load(saved)


@pytest.mark.parametrize("keep", [0, 4, 500, -1])
def test_damaged_safetensors(saved, keep):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RuntimeError, match=r"model.safetensors is damaged or not complete"):
        load(saved)


@pytest.mark.parametrize("keep", [0, 4, 500, -1000])
def test_damaged_pickle(network, tmp_path, keep):
    path = tmp_path / "weights.pt"
    torch.save(network.state_dict(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RuntimeError, match=r"weights.pt .*damaged"):
        load(f"local:{path}", network=network)


def test_a_pickled_module_is_refused(tmp_path):
    torch.save(Line(), tmp_path / "module.pt")
    with pytest.raises(RuntimeError, match=r"other Python objects, which we do not run"):
        load(f"local:{tmp_path / 'module.pt'}", network=Line())


def test_not_a_state_dict(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"expected a state dict.*got \['epoch'\]"):
        load(f"local:{tmp_path / 'a.pt'}", network=Line())
    torch.save(torch.zeros(3), tmp_path / "b.pt")
    with pytest.raises(ValueError, match=r"expected a state dict.*got Tensor"):
        load(f"local:{tmp_path / 'b.pt'}", network=Line())


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_of_another_network(network, tmp_path, ending):
    path = tmp_path / f"weights.{ending}"
    (torch.save if ending == "pt" else save_file)(network.state_dict(), path)
    with pytest.raises(ValueError, match="are not of the network Line"):
        load(f"local:{path}", network=Line())


def test_another_number_of_outputs(saved):
    with pytest.raises(ValueError, match=r"expected 5 outputs.*1 more for the rejection.*got 4"):
        load(saved, rule="rcd")


# The models that come with the package


def test_bundled(saved, network, monkeypatch):
    monkeypatch.setattr(bundled, "_FOLDER", saved.parent)
    assert bundled.bundled_names(saved.parent) == ["run"]
    assert load_network("bundled:run").address == "bundled:run"
    assert same_weights(load("bundled:run").base, network)
    with pytest.raises(LookupError, match=r"unknown bundled model 'rum'. Did you mean 'run'"):
        load("bundled:rum")


@pytest.mark.parametrize("name", bundled.bundled_names())
def test_every_bundled_model_loads(name):
    found = load_network(f"bundled:{name}")
    assert found.rule is not None
    assert found.num_classes is not None
