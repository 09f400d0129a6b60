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
from cpr_wrap.zoo import load, load_network, local
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


@pytest.mark.parametrize(
    "keys",
    [
        *([], ["state_dict"], ["model_state_dict"], ["model"], ["net"], ["network"]),
        *(["model", "state_dict"], ["state_dict", "net"]),
    ],
    ids=".".join,
)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model."])
def test_pickled_state_dict(network, tmp_path, keys, prefix):
    content = {prefix + name: value for name, value in network.state_dict().items()}
    for key in reversed(keys):
        content = {"epoch": 3, key: content}
    torch.save(content, tmp_path / "weights.pt")
    model = load(
        f"local:{tmp_path / 'weights.pt'}",
        network="lenet-compact",
        network_settings={"num_outputs": 4},
    )
    assert same_weights(model.base, network)
    assert model.rule == Consistency()
    assert model.source == SOURCE  # so that it can be saved and loaded again


def test_a_wrapper_inside_the_network(network, tmp_path):
    state = {name.replace("0.", "0.module.", 1): v for name, v in network.state_dict().items()}
    torch.save(state, tmp_path / "weights.pt")
    model = load(f"local:{tmp_path / 'weights.pt'}", network=network)
    assert same_weights(model.base, network)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_safetensors_file(network, tmp_path, prefix):
    state = {prefix + name: value for name, value in network.state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    model = load(f"local:{tmp_path / 'weights.safetensors'}", network=network)
    assert same_weights(model.base, network)
    assert model.base is not network


def test_file_without_weights(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"")
    model = load(f"local:{tmp_path / 'weights.pt'}", network=Line(), pretrained=False)
    assert same_weights(model.base, Line())


# Networks of one's own


class Own(nn.Module):
    """A class of a user's own, with an argument."""

    def __init__(self, outputs: int = 4):
        super().__init__()
        self.layer = nn.Linear(3, outputs)

    def forward(self, x):
        return self.layer(x.flatten(1))


def make_own(outputs: int = 4) -> nn.Module:
    return Own(outputs)


@pytest.mark.parametrize("network", [Own, make_own, f"{__name__}:Own", f"{__name__}:make_own"])
@pytest.mark.parametrize("outputs", [4, 5])
def test_a_class_or_a_function_by_itself_or_by_its_address(tmp_path, network, outputs):
    own = Own(outputs)
    torch.save(own.state_dict(), tmp_path / "weights.pt")
    settings = {} if outputs == 4 else {"outputs": outputs}
    model = load(f"local:{tmp_path / 'weights.pt'}", network=network, network_settings=settings)
    assert same_weights(model.base, own)
    # What was saved from it says where its code is, and does not start it.
    saved = model.save(tmp_path / "saved")
    address = network if isinstance(network, str) else f"{__name__}:{network.__name__}"
    message = f"names the network '{address}', which is code .*pass network='{address}'"
    with pytest.raises(ValueError, match=message):
        load(saved)
    assert same_weights(load(saved, network=address).base, own)


def test_settings_in_a_file_get_no_more_room_than_its_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("cpr_wrap.zoo.local._ALWAYS_ROOM", 2**20)
    torch.save(Own().state_dict(), tmp_path / "weights.pt")
    saved = load(f"local:{tmp_path / 'weights.pt'}", network=Own).save(tmp_path / "saved")
    config = json.loads((saved / "config.json").read_text())
    config["network_settings"] = {"outputs": 10**6}
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match=r"shape \(1000000, 3\), for which model\.safe"):
        load(saved, network=Own)


def test_a_description_alone_is_not_measured_by_weights_that_it_does_not_have(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("cpr_wrap.zoo.local._ALWAYS_ROOM", 2**16)
    below = {"network": "lenet-compact", "network_settings": {"num_outputs": 4}}
    network = build_network("lenet-compact", num_outputs=4)
    for name, config in (("below", below), ("above", {"base": f"local:{tmp_path / 'below'}"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    assert load_network(tmp_path / "below", pretrained=False).network is not None
    save_file(network.state_dict(), tmp_path / "above" / "model.safetensors")
    assert same_weights(load_network(tmp_path / "above").network, network)


def test_a_module_of_the_current_folder(tmp_path, monkeypatch):
    code = "from torch import nn\ndef Net():\n    return nn.Linear(3, 2)\n"
    (tmp_path / "a_net_of_mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    torch.save(nn.Linear(3, 2).state_dict(), "weights.pt")
    found = load_network("local:weights.pt", network="a_net_of_mine:Net")
    assert isinstance(found.network, nn.Linear)
    assert found.source["network"] == "a_net_of_mine:Net"


def test_a_function_without_a_name_leaves_no_address(tmp_path):
    torch.save(Own().state_dict(), tmp_path / "weights.pt")
    assert load_network(f"local:{tmp_path / 'weights.pt'}", network=lambda: Own()).source == {}


def test_what_gives_no_network(tmp_path):
    torch.save(Own().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(TypeError, match=r"expected builtins:dict to give a torch.*, got dict"):
        load(f"local:{tmp_path / 'weights.pt'}", network=dict)
    with pytest.raises(RuntimeError, match=r"test_local:Own failed: TypeError"):
        load(
            f"local:{tmp_path / 'weights.pt'}",
            network=f"{__name__}:Own",
            network_settings={"width": 2},
        )


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


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", ValueError, "config.json: Invalid JSON: EOF while parsing an object"),
        ("[]", ValueError, r"Input should be an object, got \[\]"),
        (f'{{"rule": {DEEP}}}', ValueError, "config.json: .* recursion limit exceeded"),
        ('{"rule": {"radius": 1}}', ValueError, "config.json: a rule's .* needs its name"),
        ('{"rule": ["cpr"]}', ValueError, r"rule: Input should be an object, got \['cpr'\]"),
        ('{"rule": {"name": 3}}', ValueError, "config.json: a rule's .* needs its name"),
        ('{"rule": {"name": "cpq"}}', ValueError, "unknown rejection rule 'cpq'"),
        ('{"rule": {"name": "cpr", "radios": 1}}', ValueError, "has no setting 'radios'"),
        (
            '{"rule": {"name": "cpr", "radius": "1"}}',
            ValueError,
            "radius: expected a number, got '1'",
        ),
        ('{"rule": {"name": "cpr", "steps": 1.5}}', ValueError, "steps: expected a whole number"),
        ('{"rule": {"name": "cpr", "steps": -1}}', ValueError, "config.json: .*steps"),
        ('{"rule": {"name": "cpr", "norm": 2}}', ValueError, "unknown threat model 2"),
        ('{"rule": {"name": "cpr", "smooth": "no"}}', ValueError, "smooth: expected True"),
        (
            '{"rule": {"name": "cpr", "threshold": true}}',
            ValueError,
            "threshold: expected a number",
        ),
        ('{"rule": {"name": "confidence", "threshold": null}}', ValueError, "{'threshold': None}"),
        (
            '{"rule": {"name": "confidence", "threshold": NaN}}',
            ValueError,
            "threshold: expected a finite number",
        ),
        ('{"network": "lenet-compct"}', LookupError, "Did you mean 'lenet-compact'"),
        ('{"network": 5}', ValueError, "network: Input should be a valid string, got 5"),
        (
            '{"network": "lenet", "network_settings": [1]}',
            ValueError,
            "settings: Input should be an",
        ),
        (
            '{"network": "lenet", "network_settings": {"width": 1}}',
            ValueError,
            "config.json: network 'lenet' does not take the settings {'width': 1}",
        ),
        (
            '{"network": "lenet", "network_settings": {"num_outputs": "ten"}}',
            ValueError,
            "config.json: network 'lenet' does not take the settings",
        ),
        (
            '{"network": "lenet", "network_settings": {"num_outputs": 3000000000}}',
            ValueError,
            "network_settings: expected num_outputs up to 1,000,000, got 3000000000",
        ),
        (
            '{"base": "timm:test_vit", "network_settings": {"depth": 100000000}}',
            ValueError,
            "network_settings: expected depth up to 1,000,000, got 100000000",
        ),
        (
            '{"network": "lenet", "network_settings": {"auxiliary": 1000000}}',
            ValueError,
            r"expected at least two classes and the auxiliary column, got 10$",
        ),
        (
            '{"network": "lenet", "network_settings": {"num_outputs": 900000}}',
            ValueError,
            r"shape \(900000, 1024\), for which model.safetensors \([\d,]+ bytes\) has no room",
        ),
        (
            '{"num_classes": 2.5}',
            ValueError,
            "num_classes: Input should be a valid integer, got 2.5",
        ),
        (
            '{"num_classes": true}',
            ValueError,
            "num_classes: Input should be a valid integer, got True",
        ),
        ('{"num_classes": 1}', ValueError, "num_classes: Input should be greater than .* 2, got 1"),
        ('{"input_shape": [1, 0, 4]}', ValueError, "input_shape: 1: .* be greater than 0, got 0"),
        ('{"input_shape": [3, 90000, 90000]}', ValueError, "input_shape: expected fewer pixels"),
        ('{"eps": "8/255"}', ValueError, "eps: Input should be a valid number, got '8/255'"),
        ('{"base": "nowhere"}', ValueError, "expected an address like source:name"),
        ('{"base": ["timm:resnet18"]}', ValueError, "base: Input should be a valid string"),
        ('{"base": "os:system"}', LookupError, "unknown model source 'os'"),
        ('{"base": "timm:resnet18", "network_settings": {"x": 1}}', ValueError, "timm cannot buil"),
        (
            '{"base": "timm:test_vit", "network_settings": {"embed_dim": 60000}}',
            ValueError,
            r"timm cannot build timm:test_vit .*, for which model.safetensors .* has no room",
        ),
    ],
)
def test_bad_config(saved, text, error, message):
    (saved / "config.json").write_text(text)
    with pytest.raises(error, match=message) as info:
        load(saved)
    assert "\n" not in str(info.value)
    assert len(str(info.value)) < 600


@pytest.mark.parametrize("dataset", ["..", "a/b", "a\\b", "os:getcwd"])
def test_images_that_are_a_path_or_code_are_not_told(saved, dataset):
    config = json.loads((saved / "config.json").read_text()) | {"dataset": dataset}
    (saved / "config.json").write_text(json.dumps(config))
    assert load_network(saved).dataset is None
    assert load(saved).source["dataset"] == dataset


def test_a_base_that_names_itself(saved, tmp_path):
    for first, second in ((saved, saved), (saved, tmp_path / "other")):
        second.mkdir(exist_ok=True)
        (first / "config.json").write_text(json.dumps({"base": f"local:{second}"}))
        (second / "config.json").write_text(json.dumps({"base": f"local:{first}"}))
        with pytest.raises(ValueError, match=r"its base .* leads back to itself"):
            load(saved)


def test_a_base_on_the_hub_is_asked_for_only_with_leave(saved, monkeypatch):
    import timm

    asked = []

    def create(name, **settings):
        asked.append(name)
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", create)
    (saved / "config.json").write_text('{"base": "hf-hub:someone/tiny"}')
    with pytest.raises(ValueError, match=r"has the base hf-hub:someone/tiny.*pass download=True"):
        load(saved)
    assert asked == []
    with pytest.raises(RuntimeError, match="could not load hf-hub:someone/tiny"):
        load(saved, download=True)
    assert asked == ["hf-hub:someone/tiny"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_that_are_not_finite_are_refused(network, tmp_path, value, ending):
    state = network.state_dict()
    state["0.bias"] = state["0.bias"].clone().fill_(value)
    path = tmp_path / f"weights.{ending}"
    (torch.save if ending == "pt" else save_file)(state, path)
    with pytest.raises(ValueError, match=r"finite weights, got NaN or infinity in '0\.bias'"):
        load(f"local:{path}", network=network)


def test_a_buffer_may_be_infinite(tmp_path):
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    torch.save(Masked().state_dict(), tmp_path / "masked.pt")
    assert load(f"local:{tmp_path / 'masked.pt'}", network=Masked()).base.mask[1] < 0


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
    with pytest.raises(ValueError, match=r"expected a state dict.*got the keys 'epoch'"):
        load(f"local:{tmp_path / 'a.pt'}", network=Line())
    endless: dict = {"lr": 0.1}
    endless["model"] = endless
    torch.save(endless, tmp_path / "c.pt")
    with pytest.raises(ValueError, match=r"under one of 'state_dict'.*got the keys 'lr', 'model'"):
        load(f"local:{tmp_path / 'c.pt'}", network=Line())
    torch.save(torch.zeros(3), tmp_path / "b.pt")
    with pytest.raises(ValueError, match=r"expected a state dict.*got Tensor"):
        load(f"local:{tmp_path / 'b.pt'}", network=Line())


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_of_another_network(network, tmp_path, ending):
    path = tmp_path / f"weights.{ending}"
    (torch.save if ending == "pt" else save_file)(network.state_dict(), path)
    with pytest.raises(ValueError, match=r"are not of the network .*for Line"):
        load(f"local:{path}", network=Line())


def test_weights_with_names_that_none_of_many_has(tmp_path):
    network = nn.Sequential(*(nn.Linear(3, 3) for _ in range(40)))
    torch.save({f"layer_{k}": v for k, v in network.state_dict().items()}, tmp_path / "a.pt")
    message = r'Missing key\(s\).*"0.weight".*; the file has layer_0.weight, layer_0.bias, .*, …\)'
    with pytest.raises(ValueError, match=message) as info:
        load(f"local:{tmp_path / 'a.pt'}", network=network)
    assert len(str(info.value)) < 600 + len(str(tmp_path))


def test_another_number_of_outputs(saved):
    with pytest.raises(ValueError, match="for 4 classes and 1 more for the rejection rule, got 4"):
        load(saved, rule="rcd")


# The models that come with the package


def test_bundled(saved, network, monkeypatch):
    monkeypatch.setattr(local, "_BUNDLED", saved.parent)
    assert local.bundled_names(saved.parent) == ["run"]
    assert load_network("bundled:run").address == "bundled:run"
    assert same_weights(load("bundled:run").base, network)
    with pytest.raises(LookupError, match=r"unknown bundled model 'rum'. Did you mean 'run'"):
        load("bundled:rum")


@pytest.mark.parametrize("name", local.bundled_names())
def test_every_bundled_model_loads(name):
    found = load_network(f"bundled:{name}")
    assert found.rule is not None
    assert found.num_classes is not None
