"""timm's models, on the smallest ones it has."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from cpr_wrap.data import load_folder
from cpr_wrap.zoo import load, load_network
from cpr_wrap.zoo.model import Options
from cpr_wrap.zoo.timm import load_hub, wrap_timm

TINY = "test_vit.r160_in1k"


@pytest.fixture(scope="module")
def timm():
    import timm

    return timm


def test_two_lines_wrap_a_timm_model(timm):
    from cpr_wrap import CPRWrapper, load

    base = load(f"timm:{TINY}", pretrained=False).base
    model = CPRWrapper(base)

    assert model(torch.rand(2, 3, 160, 160)).logits.shape == (2, 1000)


def test_mean_and_std_are_inside(timm):
    found = load_network(f"timm:{TINY}", pretrained=False)
    config = timm.get_pretrained_cfg(TINY)
    inner = found.network[1]
    x = torch.rand(2, 3, 160, 160)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (config.mean, config.std))
    with torch.no_grad():
        torch.testing.assert_close(found.network(x), inner((x - mean) / std))
    assert found.input_shape == tuple(config.input_size)
    assert (found.num_classes, found.address) == (1000, f"timm:{TINY}")
    assert not found.network.training


def test_image_folders_get_the_models_resize_and_crop(timm, tmp_path):
    found = load_network(f"timm:{TINY}", pretrained=False)
    for number, size in enumerate([(300, 400), (180, 170)]):
        (tmp_path / str(number)).mkdir()
        Image.new("RGB", size, (255, 0, 51)).save(tmp_path / str(number) / "a.png")
    data = load_folder(tmp_path, transform=found.transform)
    assert data.images.shape == (2, 3, 160, 160)
    # A plain color stays what it was: pixels, not normalized ones.
    assert torch.allclose(data.images[:, :, 80, 80], torch.tensor([1, 0, 0.2]))


def test_weights_from_a_model_directory(timm, tmp_path):
    torch.manual_seed(7)
    source = timm.create_model("test_vit").eval()
    save_file(source.state_dict(), tmp_path / f"{TINY}.safetensors")
    model = load(f"timm:{TINY}", model_dir=tmp_path)
    assert torch.equal(model.base[1].head.weight, source.head.weight)


def test_the_random_state_is_left_alone(timm):
    before = torch.get_rng_state()
    load_network(f"timm:{TINY}", pretrained=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_save_and_load_again(timm, tmp_path):
    model = load(f"timm:{TINY}", "confidence", pretrained=False, threshold=0.25)
    with torch.no_grad():
        model.base[1].head.bias.add_(1)  # so that building it afresh is not enough
    again = load(model.save(tmp_path / "saved"))
    x = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.equal(again.base(x), model.base(x))
    assert again.rule == model.rule


# The Hub


def test_from_the_hubs_cache(timm, tmp_path, monkeypatch):
    from timm.models._hub import has_hf_hub

    if not has_hf_hub():
        pytest.skip("this timm cannot use this huggingface_hub")
    torch.manual_seed(7)
    source = timm.create_model("test_vit", num_classes=5)
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    config = {
        "architecture": "test_vit",
        "num_classes": 5,
        "pretrained_cfg": {
            "input_size": [3, 160, 160],
            "fixed_input_size": True,
            "mean": [0.25] * 3,
            "std": [0.5] * 3,
        },
    }
    (snapshot / "config.json").write_text(json.dumps(config))
    save_file(source.state_dict(), snapshot / "model.safetensors")
    refs = tmp_path / "models--someone--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = load("hf-hub:someone/tiny")
    assert model.base[0].mean.flatten().tolist() == [0.25] * 3
    assert torch.equal(model.base[1].head.weight, source.head.weight)
    assert model.logits(torch.rand(1, 3, 160, 160)).shape == (1, 5)


def test_the_hub_out_of_reach_is_one_line(timm, monkeypatch):
    monkeypatch.setattr(timm, "create_model", no_route)
    with pytest.raises(RuntimeError, match=r"could not load hf-hub:someone/tiny@v2 \(no ") as info:
        load("hf-hub:someone/tiny@v2")
    assert "\n" not in str(info.value)
    assert "`hf download someone/tiny`" in str(info.value)
    assert "models--someone--tiny into " in str(info.value)


def test_a_hub_client_that_timm_cannot_use(timm, monkeypatch):
    def swallowed(*args, **kwargs):
        raise RuntimeError("Hugging Face hub model specified but package not installed. Run `pip")

    monkeypatch.setattr(timm, "create_model", swallowed)
    with pytest.raises(RuntimeError, match="pip install 'huggingface_hub<2'"):
        load_hub("someone/tiny", Options())


def test_no_hub_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", None)
    with pytest.raises(ModuleNotFoundError, match="pip install huggingface_hub"):
        load_hub("someone/tiny", Options())


def no_route(*args, **kwargs):
    raise OSError("no route\nto host")


# Bad input


def test_a_failed_download_says_what_to_get(timm, monkeypatch, tmp_path):
    monkeypatch.setattr(timm, "create_model", no_route)
    with pytest.raises(RuntimeError, match=r"could not load timm:test_vit.*no route") as info:
        load(f"timm:{TINY}", model_dir=tmp_path)
    message = str(info.value)
    assert "\n" not in message
    assert f"https://huggingface.co/timm/{TINY}/resolve/main/model.safetensors" in message
    assert str(tmp_path / f"{TINY}.safetensors") in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_vitt", r"unknown timm model 'test_vitt'. Did you mean 'test_vit'"),
        ("test_vit.r160", r"unknown weights .*'test_vit.r160'. Did you mean 'test_vit.r160_in1k'"),
    ],
)
def test_unknown_names(timm, name, message):
    with pytest.raises(LookupError, match=message):
        load(f"timm:{name}", pretrained=False)


def test_a_model_without_weights(timm, monkeypatch):
    monkeypatch.setattr(timm, "is_model_pretrained", lambda name: False)
    with pytest.raises(ValueError, match="no weights of test_vit; pass pretrained=False"):
        load("timm:test_vit")


def test_a_feature_extractor(timm):
    with pytest.raises(ValueError, match="expected a classifier, got a network with 0 classes"):
        wrap_timm(timm.create_model("test_vit", num_classes=0), "timm:test_vit")


def test_timm_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match="timm is not installed"):
        load(f"timm:{TINY}", pretrained=False)
