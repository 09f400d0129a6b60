"""Models of timm, from its own list and from the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from cpr_wrap._checks import import_extra
from cpr_wrap.zoo.checkpoint import load_weights, one_line, tensors_only
from cpr_wrap.zoo.model import ZOOS, Normalize, Options, ZooModel, unknown

_ENDINGS = (".safetensors", ".pt", ".pth", ".bin")


@ZOOS.register("timm")
def load_timm(name: str, options: Options) -> ZooModel:
    """Load a timm classifier, e.g. `timm:resnet18.a1_in1k`.

    With `model_dir`, weights come from `<model_dir>/<name>.safetensors` (or .pt) if it is there.
    """
    timm = import_extra("timm")
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise unknown("timm model", architecture, timm.list_models())
    tagged = timm.list_pretrained(f"{architecture}.*")
    if tag and name not in tagged:
        raise unknown(f"weights of timm's {architecture}:", name, tagged)
    file = _weights_file(name, options)
    if file is None and options.pretrained and not timm.is_model_pretrained(architecture):
        raise ValueError(f"timm has no weights of {architecture}; pass pretrained=False")
    fetch = options.pretrained and file is None
    todo = _where_to_put(name, options.model_dir or Path("models")) if fetch else None
    network = _create(f"timm:{name}", fetch, options.network_settings, todo)
    if file is not None:
        load_weights(network, file)
    return wrap_timm(network, f"timm:{name}")


def timm_names() -> list[str]:
    """The addresses of all models that timm has weights of."""
    return [f"timm:{name}" for name in import_extra("timm").list_pretrained()]


@ZOOS.register("hf-hub")
def load_hub(name: str, options: Options) -> ZooModel:
    """Load a timm model from the Hugging Face Hub, e.g. `hf-hub:timm/resnet18.a1_in1k`."""
    repository = name.partition("@")[0]
    cache = import_extra("huggingface_hub.constants").HF_HUB_CACHE
    todo = (
        f"where there is a connection, `hf download {repository}` gets "
        f"https://huggingface.co/{repository}; put its folder "
        f"models--{repository.replace('/', '--')} into {cache}"
    )
    network = _create(f"hf-hub:{name}", options.pretrained, options.network_settings, todo)
    return wrap_timm(network, f"hf-hub:{name}")


def wrap_timm(network: nn.Module, address: str) -> ZooModel:
    """Put a timm network's mean and std inside it, and read its resize and crop."""
    timm_data = import_extra("timm.data")
    num_classes = int(getattr(network, "num_classes", 0))
    if num_classes < 2:
        raise ValueError(
            f"{address}: expected a classifier, got a network with {num_classes} classes; "
            "some timm models are feature extractors"
        )
    config = timm_data.resolve_model_data_config(network)
    transform = timm_data.create_transform(**config, is_training=False)
    steps = transform.transforms  # without the normalization, which the network has as a layer
    transform.transforms = [step for step in steps if type(step).__name__ != "Normalize"]
    return ZooModel(
        network=nn.Sequential(Normalize(config["mean"], config["std"]), network).eval(),
        address=address,
        input_shape=tuple(config["input_size"]),
        num_classes=num_classes,
        transform=transform,
        source={"base": address},
    )


def _create(
    address: str, pretrained: bool, settings: Mapping[str, Any], todo: str | None
) -> nn.Module:
    """Let timm build a model; `todo` is what to do if it cannot download what it needs."""
    create = import_extra("timm").create_model
    try:
        with tensors_only():
            network: nn.Module = create(
                address.removeprefix("timm:"), pretrained=pretrained, **settings
            )
    except Exception as error:  # whatever timm, the Hub's client or the connection raise
        reason = one_line(error)
        if todo is None:
            with_settings = f"{address} with the settings {dict(settings)}"
            raise ValueError(f"timm cannot build {with_settings}: {reason}") from error
        if "package not installed" in reason:
            # timm swallows the import error of a name that release 2 dropped.
            advice = "pip install 'huggingface_hub<2'"
            reason = f"this timm does not work with this huggingface_hub; {advice}"
        raise RuntimeError(f"could not load {address} ({reason}): {todo}") from error
    return network


def _weights_file(name: str, options: Options) -> Path | None:
    """The file in `model_dir` that holds a model's weights, if there is one."""
    if options.model_dir is None or not options.pretrained:
        return None
    files = [options.model_dir / f"{name}{ending}" for ending in _ENDINGS]
    return next((file for file in files if file.is_file()), None)


def _where_to_put(name: str, folder: Path) -> str:
    config = import_extra("timm").get_pretrained_cfg(name)
    url = config.url
    if config.hf_hub_id:
        url = f"https://huggingface.co/{config.hf_hub_id}/resolve/main/model.safetensors"
    target = folder / f"{name}{Path(url).suffix}"
    return (
        f"get {url}, put it at {target} and load with model_dir={str(folder)!r} "
        f"(--model-dir {folder})"
    )
