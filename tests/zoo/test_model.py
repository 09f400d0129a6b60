"""Addresses, and the layer that holds mean and std."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cpr_wrap.rules import Confidence
from cpr_wrap.zoo import ZOOS, Normalize, load, load_network, parse_address, wrap
from cpr_wrap.zoo.model import unknown
from tests.toys import Line


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("timm:resnet18.a1_in1k", ("timm", "resnet18.a1_in1k")),
        ("robustbench:cifar10/L2/Ding2020MMA", ("robustbench", "cifar10/L2/Ding2020MMA")),
        ("hf-hub:owner/name@v1", ("hf-hub", "owner/name@v1")),
        ("local:/a/b:c.pt", ("local", "/a/b:c.pt")),
        (Path("a/b"), ("local", "a/b")),
    ],
)
def test_addresses(address, parts):
    assert parse_address(address) == parts


@pytest.mark.parametrize("address", ["resnet18", "owner/name", "weights.pt"])
def test_names_without_a_source_are_refused(address):
    with pytest.raises(ValueError, match=r"names no source\. Type bundled:") as info:
        parse_address(address)
    for source in ZOOS:
        assert f"{source}:{address}" in str(info.value)


def test_a_saved_folder_needs_no_source(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert parse_address(str(tmp_path)) == ("local", str(tmp_path))


def test_unknown_source():
    with pytest.raises(LookupError, match=r"unknown model source 'tim'. Did you mean 'timm'"):
        parse_address("tim:resnet18")


def test_empty_name():
    with pytest.raises(ValueError, match="expected a name after 'timm:'"):
        parse_address("timm:")


def test_not_an_address():
    with pytest.raises(TypeError, match="expected an address like"):
        parse_address(18)


def test_all_sources_are_there():
    assert list(ZOOS) == ["bundled", "hf-hub", "local", "robustbench", "timm"]
    assert all(load.__doc__ for load in ZOOS.values())


def test_unknown_lists_few_names_and_suggests_in_many():
    assert str(unknown("fruit", "zzz", ["b", "a"])) == "unknown fruit 'zzz'. Known: a, b"
    many = [f"name{i}" for i in range(20)]
    assert str(unknown("x", "NAME7", many)).startswith("unknown x 'NAME7'. Did you mean 'name7'")
    assert "Known" not in str(unknown("x", "NAME7", many))


# Normalize


def test_normalize_by_hand():
    x = torch.tensor([0.5, 1.0]).view(1, 2, 1, 1)
    assert Normalize([0.25, 0.5], [0.5, 0.25])(x).flatten().tolist() == [0.5, 2.0]


def test_normalize_follows_the_networks_type_and_is_saved():
    layer = Normalize([0.5], [0.5]).double()
    assert layer(torch.rand(1, 1, 2, 2, dtype=torch.float64)).dtype == torch.float64
    assert set(layer.state_dict()) == {"mean", "std"}


@pytest.mark.parametrize(("mean", "std"), [([0.5], [0.5, 0.5]), ([], [])])
def test_normalize_needs_both_for_each_channel(mean, std):
    with pytest.raises(ValueError, match="expected a mean and a std for each channel"):
        Normalize(mean, std)


def test_normalize_needs_a_positive_std():
    with pytest.raises(ValueError, match=r"std: expected numbers above 0, got \[0\]"):
        Normalize([0.5], [0])


# load


@pytest.fixture
def line(tmp_path):
    """A registered-for-the-test source of one network."""
    torch.save(Line(dtype=torch.float32).state_dict(), tmp_path / "line.pt")
    return f"local:{tmp_path / 'line.pt'}"


def test_load_on_a_device(line):
    model = load(line, network=Line(dtype=torch.float32), device="meta")
    assert model.base.weight.device.type == "meta"


def test_a_rule_with_settings_of_its_own(line):
    from cpr_wrap.rules import Consistency

    rule = Consistency(radius=0.002)
    assert load(line, rule, network=Line()).rule is rule
    with pytest.raises(TypeError, match="expected a rule's name with the settings radius"):
        load(line, rule, network=Line(), radius=0.1)


def test_an_empty_name_is_not_the_rule_of_the_network():
    with pytest.raises(LookupError, match="unknown rejection rule ''"):
        load("bundled:mnist-compact-ccat", rule="")


@pytest.mark.parametrize("rule", [3, Confidence])
def test_what_is_no_rule_is_told(rule):
    with pytest.raises(TypeError, match=r"rule: expected a rule's name or a rule, .* got "):
        load("bundled:nothing", rule=rule)


def test_an_unknown_rule_comes_before_any_work():
    with pytest.raises(LookupError, match=r"unknown rejection rule 'cpq'. Did you mean 'cpr'"):
        load("local:nowhere", rule="cpq")


def test_an_unknown_setting_comes_before_any_work():
    with pytest.raises(ValueError, match=r"no setting 'radios'.*Did you mean 'radius'"):
        load("local:nowhere", rule="cpr", radios=0.1)


def test_the_random_state_is_left_alone(line):
    before = torch.get_rng_state()
    load_network(line, network="lenet-compact", pretrained=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_wrap_is_the_second_half_of_load(line):
    from cpr_wrap.rules import Confidence

    found = load_network(line, network=Line())
    assert wrap(found, "confidence", threshold=0.75).rule == Confidence(threshold=0.75)
    assert wrap(found, radius=0.002).rule.radius == 0.002
    assert wrap(found).base is found.network
