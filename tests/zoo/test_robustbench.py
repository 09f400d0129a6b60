"""RobustBench's own loading code, with real weights and without a connection."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from PIL import Image

from cpr_wrap.zoo import load, load_network
from cpr_wrap.zoo import robustbench as zoo
from tests.real import foolbox_cifar10, resnet18
from tests.zoo.conftest import RESNET18, WEIGHTS

OTHER = "Sehwag2021Proxy_R18"  # the same architecture; nothing of it lies in the model directory


def test_two_lines_wrap_an_entry(model_dir):
    from cpr_wrap import CPRWrapper, load

    base = load(f"robustbench:cifar10/Linf/{RESNET18}", model_dir=model_dir).base
    model = CPRWrapper(base, radius=0.0018, steps=2)

    x, y = foolbox_cifar10()
    selection = model(x[:4])
    assert selection.predicted.tolist() == y[:4].tolist()
    assert all(label in (-1, true) for label, true in zip(selection.labels, y, strict=False))


def test_real_weights_classify_real_images(model_dir):
    x, y = foolbox_cifar10()
    model = load(f"robustbench:{RESNET18}", rule="none", model_dir=model_dir)
    assert (model.predict(x) == y).double().mean() >= 0.9


def test_the_network_is_the_one_the_weights_are_of(model_dir):
    x, _ = foolbox_cifar10()
    found = load_network(f"robustbench:{RESNET18}", model_dir=model_dir)
    with torch.no_grad():
        # pyautoattack has the architecture of its weights beside them.
        torch.testing.assert_close(found.network(x[:2]), resnet18()(x[:2]))


def test_what_we_know_about_an_entry(model_dir):
    found = load_network(f"robustbench:{RESNET18}", model_dir=model_dir)
    assert found.address == f"robustbench:cifar10/Linf/{RESNET18}"
    assert (found.input_shape, found.num_classes, found.dataset) == ((3, 32, 32), 10, "cifar10")
    assert (found.norm, found.eps) == ("Linf", 8 / 255)
    assert not any(module.training for module in found.network.modules())


def test_save_and_load_again(model_dir, tmp_path):
    x, _ = foolbox_cifar10()
    model = load(f"robustbench:{RESNET18}", model_dir=model_dir, rule="confidence", threshold=0.9)
    again = load(model.save(tmp_path / "saved"))  # the model directory is not needed any more
    assert again.rule == model.rule
    with torch.no_grad():
        assert torch.equal(again.base(x[:2]), model.base(x[:2]))


def test_without_weights(robustbench, tmp_path):
    first, second = (
        load_network(f"robustbench:{RESNET18}", pretrained=False, model_dir=tmp_path).network
        for _ in range(2)
    )
    assert not list(tmp_path.iterdir())
    assert torch.equal(first.linear.weight, second.linear.weight)  # the random state is put back


def test_an_entry_that_lives_in_timms_registry(robustbench):
    found = load_network("robustbench:Debenedetti2022Light_XCiT-S12", pretrained=False)
    with torch.no_grad():
        assert found.network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_imagenet_entries_bring_their_resize_and_crop(robustbench):
    found = load_network("robustbench:imagenet/Linf/Salman2020Do_R18", pretrained=False)
    pixels = found.transform(Image.new("RGB", (300, 400), (255, 0, 51)))
    assert pixels.shape == found.input_shape == (3, 224, 224)
    assert torch.allclose(pixels[:, 0, 0], torch.tensor([1, 0, 0.2]))
    assert (found.num_classes, found.eps) == (1000, 4 / 255)


# Importing


def test_the_borrowed_name_is_given_back(robustbench):
    assert "autoattack" not in sys.modules
    assert "autoattack.state" not in sys.modules


def test_the_name_is_lent_while_importing():
    with zoo._borrowed_name():
        from autoattack.state import EvaluationState
        from pyautoattack.state import EvaluationState as Original

    assert EvaluationState is Original


def test_a_real_autoattack_is_left_alone(monkeypatch):
    real = types.ModuleType("autoattack")
    monkeypatch.setitem(sys.modules, "autoattack", real)
    with zoo._borrowed_name():
        assert sys.modules["autoattack"] is real
        assert "autoattack.state" not in sys.modules
    assert sys.modules["autoattack"] is real


def test_missing_pkg_resources_says_what_to_install(robustbench, monkeypatch):
    for name in ("robustbench", "robustbench.data", "robustbench.loaders"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'setuptools<82'"):
        zoo.import_robustbench()


def test_missing_robustbench_says_what_to_install(robustbench, monkeypatch):
    monkeypatch.setitem(sys.modules, "robustbench", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cpr-wrap\[robustbench\]'"):
        zoo.import_robustbench()


# Downloads


def fails(output, **_):
    raise OSError("no route\nto host")


def breaks_off(output, **_):
    Path(output + "x1y2tmp").write_bytes(b"PK half a checkpoint")
    raise OSError("connection reset")


@pytest.mark.parametrize("download", [fails, breaks_off])
def test_a_failed_download_says_what_to_get_and_leaves_nothing(
    robustbench, monkeypatch, tmp_path, download, capsys
):
    monkeypatch.setattr("gdown.download", download)
    with pytest.raises(RuntimeError, match=f"could not download robustbench:.*{OTHER}") as info:
        load(f"robustbench:{OTHER}", model_dir=tmp_path)
    message = str(info.value)
    assert "\n" not in message
    assert "https://drive.google.com/uc?id=" in message
    assert str(tmp_path / "cifar10" / "Linf" / f"{OTHER}.pt") in message
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert capsys.readouterr().out == ""


def test_a_failed_download_of_an_ensemble_names_every_file(robustbench, tmp_path):
    entry, facts = zoo.find_entry("Chen2020Adversarial")
    files = zoo._files(entry, facts, tmp_path)
    message = zoo._what_to_do(entry.address, files, "no route")
    for member in range(3):
        assert f"put it at {tmp_path}/cifar10/Linf/Chen2020Adversarial.pt_m{member}.pt" in message


def test_a_failed_download_of_a_timm_entry(robustbench, monkeypatch):
    def no_route(*args, **kwargs):
        raise OSError("no route")

    monkeypatch.setattr("torch.hub.download_url_to_file", no_route)
    monkeypatch.setattr("torch.hub.get_dir", lambda: "/cache")
    with pytest.raises(RuntimeError, match=r"get https://github.com/.*put it at /cache/check"):
        load("robustbench:Debenedetti2022Light_XCiT-S12")


def test_a_failed_download_of_torchvisions_weights(robustbench, monkeypatch, tmp_path):
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fails_at_once)
    with pytest.raises(RuntimeError, match=r"torchvision's own weights; get them from https://do"):
        load("robustbench:imagenet/Linf/Standard_R50", model_dir=tmp_path)


def test_torchvisions_weights_are_fetched_only_with_leave(robustbench, monkeypatch):
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fails_at_once)
    address = "robustbench:imagenet/Linf/Standard_R50"
    with pytest.raises(ValueError, match="fetched when it is built; pass download=True"):
        load(address, pretrained=False)
    with pytest.raises(RuntimeError, match="could not download"):
        load(address, pretrained=False, download=True)


def fails_at_once(*args, **kwargs):
    raise OSError("no route")


# Damaged and foreign files


@pytest.mark.parametrize(
    "content", [WEIGHTS.read_bytes()[:100_000], b"<!DOCTYPE html><title>Quota exceeded</title>"]
)
def test_a_damaged_checkpoint_is_named_and_kept(robustbench, tmp_path, content):
    path = tmp_path / "cifar10" / "Linf" / f"{OTHER}.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="which is damaged or of another model") as info:
        load(f"robustbench:{OTHER}", model_dir=tmp_path)
    assert str(path) in str(info.value)
    assert path.is_file()


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (Path.touch, (self.target,))


def test_a_checkpoint_that_would_run_code_is_refused(robustbench, monkeypatch, tmp_path):
    # Also where torch does so only if told: its loading is RobustBench's, not ours.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = tmp_path / "cifar10" / "Linf" / f"{OTHER}.pt"

    def download(output, **_):
        torch.save({"state_dict": Payload(tmp_path / "ran")}, output)

    monkeypatch.setattr("gdown.download", download)
    with pytest.raises(RuntimeError, match="which is damaged or of another model"):
        load(f"robustbench:{OTHER}", model_dir=tmp_path)
    assert not (tmp_path / "ran").exists()
    assert path.is_file()  # it was not the download that failed


# Names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Rice2020Overfit", r"cifar10/Linf model 'Rice2020Overfit'. Did you mean 'Rice2020Overfi"),
        ("cifar/Linf/Rice2020Overfitting", r"data set 'cifar'. Did you mean 'cifar10'"),
        ("cifar10/linf/Rice2020Overfitting", r"threat model .*'linf'. Did you mean 'Linf'"),
    ],
)
def test_unknown_names(robustbench, name, message):
    with pytest.raises(LookupError, match=message):
        load(f"robustbench:{name}")


def test_half_an_address(robustbench):
    with pytest.raises(ValueError, match="expected robustbench:NAME or robustbench:DATASET"):
        load("robustbench:Linf/Rice2020Overfitting")
