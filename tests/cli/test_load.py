"""From options to model and images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import typer
from PIL import Image
from typer import BadParameter

from cpr_wrap.cli import _load
from cpr_wrap.cli.options import DataOptions, ModelOptions
from cpr_wrap.rules import Confidence, Consistency
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.zoo import ZooModel, load_network

_CPU = torch.device("cpu")


@pytest.fixture
def address(saved, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CPR_WRAP_DATA", raising=False)
    return f"local:{saved}"


def _rule(address, **options):
    return _load.load_model(ModelOptions(address=address, **options), _CPU).model.rule


def test_the_models_own_rule_is_kept(address):
    assert _rule(address).name == "none"


def test_a_rule_by_name_with_its_settings(address):
    assert _rule(address, rule="confidence", threshold=0.4) == Confidence(threshold=0.4)


def test_a_radius_means_cpr_where_the_model_has_no_rule_to_lose(address):
    rule = _rule(address, radius=0.1, steps=20, step_size=0.01)
    assert rule == Consistency(radius=0.1, steps=20, step_size=0.01)


def test_a_radius_is_refused_by_a_model_with_another_rule(saved, tmp_path, address):
    model = _load.load_model(ModelOptions(address=address), _CPU).model
    model.with_rule(Confidence(threshold=0.3)).save(tmp_path / "cr")
    with pytest.raises(BadParameter, match="rule confidence takes no radius; it takes threshold"):
        _rule(f"local:{tmp_path / 'cr'}", radius=0.1)
    assert _rule(f"local:{tmp_path / 'cr'}", threshold=0.6) == Confidence(threshold=0.6)


def test_cprs_ball_has_the_norm_asked_for_or_the_models(address, tmp_path):
    assert _rule(address, rule="cpr", norm="l2").norm == "L2"
    assert _rule(address, rule="cpr").norm == "Linf"
    own = _load.load_model(ModelOptions(address=address, rule="cpr", norm="l2"), _CPU).model
    own.save(tmp_path / "l2")
    assert _rule(f"local:{tmp_path / 'l2'}", steps=12).norm == "L2"
    made_for_l2 = replace(load_network(address), norm="L2", rule=own.rule)
    for rule in ({}, {"rule": "cpr"}):
        options = ModelOptions(address=address, **rule)
        assert _load.under_rule(made_for_l2, options, _CPU).rule.norm == "L2"


def test_an_unknown_rule_is_found_before_the_model_is_loaded():
    with pytest.raises(LookupError, match=r"unknown rejection rule 'cpq'\. Did you mean 'cpr'\?"):
        _rule("local:nowhere", rule="cpq")


def _facts(**known):
    return ZooModel(network=torch.nn.Identity(), address="timm:x", **known)


def test_eps_and_norm_come_from_the_model_unless_given():
    assert _load.threat_eps(0.2, _facts(eps=0.1)) == 0.2
    assert _load.threat_eps(None, _facts(eps=0.1)) == 0.1
    assert _load.threat_norm(ModelOptions(address="x"), _facts(norm="L2")) == "L2"
    assert _load.threat_norm(ModelOptions(address="x"), _facts()) == "Linf"
    assert _load.threat_norm(ModelOptions(address="x", norm="linf"), _facts(norm="L2")) == "Linf"


def test_no_eps_anywhere_is_a_usage_error():
    with pytest.raises(typer.BadParameter, match="timm:x does not say for which budget"):
        _load.threat_eps(None, _facts())


def test_no_data_set_anywhere_is_a_usage_error():
    with pytest.raises(typer.BadParameter, match="pass --dataset with one of cifar10, mnist, svhn"):
        _load.load_images(DataOptions(), _facts())


def test_bundled_images_come_with_a_note(address, capsys):
    data = _load.load_images(DataOptions(dataset="mnist", num=3), _facts())
    assert data.indices.tolist() == [0, 1, 2]
    assert capsys.readouterr().err.startswith("note: no test images of mnist in data")


def _write_folder(path, shade):
    for name in ("a", "b"):
        (path / name).mkdir(parents=True)
        Image.new("L", (4, 4), shade).save(path / name / "1.png")
    return path


def test_an_image_folder(tmp_path):
    folder = _write_folder(tmp_path / "images", 51)
    data = _load.load_images(DataOptions(dataset=str(folder)), _facts())
    assert data.labels.tolist() == [0, 1]
    assert torch.equal(data.images, torch.full((2, 3, 4, 4), 0.2))


def test_images_of_another_shape_are_refused(tmp_path):
    folder = _write_folder(tmp_path / "images", 51)
    with pytest.raises(ValueError, match=r"takes images of shape \(3, 32, 32\), images has \(3, 4"):
        _load.load_images(DataOptions(dataset=str(folder)), _facts(input_shape=(3, 32, 32)))


def test_another_number_of_classes_is_mentioned(tmp_path, capsys):
    folder = _write_folder(tmp_path / "images", 51)
    _load.load_images(DataOptions(dataset=str(folder)), _facts(num_classes=1000))
    assert "warning: images has 2 classes and timm:x 1000" in capsys.readouterr().err
    _load.load_images(DataOptions(dataset=str(folder)), _facts(num_classes=2))
    assert capsys.readouterr().err == ""


class _Bright(torch.nn.Module):
    """Class 0, surely where bright; the score is the brightness."""

    def forward(self, x):
        sure = x.flatten(1).mean(dim=1, keepdim=True) * 10
        return torch.cat([sure, torch.zeros_like(sure)], dim=1)


def test_calibrating_on_a_folder_takes_another_folder(tmp_path):
    images = _write_folder(tmp_path / "images", 51)
    validation = _write_folder(tmp_path / "validation", 102)
    model = SelectiveClassifier(_Bright().eval(), Confidence())
    options = DataOptions(dataset=str(images))
    tested = _load.load_images(options, _facts())
    with pytest.raises(typer.BadParameter, match="pass --validation with other images"):
        _load.validation_images(options, _facts(), None, tested)
    held_out = _load.validation_images(options, _facts(), str(validation), tested)
    _, record = _load.calibrated(model, 0.5, held_out)
    assert record.num_images == 2
    # Shade 102 is 0.4: the network says 4 against 0.
    assert record.after.threshold == pytest.approx(torch.tensor([4.0, 0.0]).softmax(0)[0].item())


def test_calibrating_on_a_data_set_takes_its_validation_part(address):
    facts = _load.load_model(ModelOptions(address=address), _CPU).facts
    tested = _load.load_images(DataOptions(num=3), facts)
    held_out = _load.validation_images(DataOptions(num=3), facts, None, tested)
    assert held_out.indices.tolist() == list(range(9000, 10_000))


def test_testing_on_calibration_images_is_mentioned(address, capsys):
    facts = _load.load_model(ModelOptions(address=address), _CPU).facts
    options = DataOptions(indices=[5, 9001])
    _load.validation_images(options, facts, None, _load.load_images(options, facts))
    assert "some images of mnist are used for both calibration and test" in capsys.readouterr().err


def test_a_rule_that_rejects_nothing_is_mentioned(address, capsys):
    options = ModelOptions(address=address, rule="confidence")
    _load.warn_of_open_rule(_load.load_model(options, _CPU).model)
    assert "rule confidence accepts everything at threshold 0" in capsys.readouterr().err
    options = replace(options, threshold=0.5)
    _load.warn_of_open_rule(_load.load_model(options, _CPU).model)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"this machine has no {name} device"):
        _load.pick_device(name)
    assert _load.pick_device("auto") == _load.pick_device("cpu") == _CPU


def test_each_process_takes_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert _load.pick_device("cuda") == torch.device("cuda", 1)
    assert _load.pick_device("auto") == torch.device("cuda", 1)
