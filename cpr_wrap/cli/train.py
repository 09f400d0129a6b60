"""`cpr-wrap train`: a robust network for those who have none."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpr_wrap.cli import _load, _show, options
from cpr_wrap.cli._run import resumable
from cpr_wrap.cli.options import Common, option

if TYPE_CHECKING:
    from cpr_wrap.data import FolderImages, ImageData
    from cpr_wrap.training import Recipe, TrainingResult
    from cpr_wrap.zoo import ZooModel


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What to do otherwise than the recipe says."""

    panel = "Changes to the recipe"
    method: str | None = option("Train by this method.")
    network: str | None = option(
        "Train this network: a name like resnet20, timm:resnet18 or module:Class."
    )
    pretrained: bool = option(
        "Load the pretrained weights of a network given by address.",
        "--pretrained/--from-scratch",
        default=True,
    )
    epochs: int | None = option("Epochs.", min=1)
    batch_size: int | None = option("Batch size of a training step.", min=1)
    lr: float | None = option("Learning rate.")
    seed: int | None = option("Seed of all random numbers.")
    eps: float | None = options.number("Perturbation budget in training, e.g. 8/255.")


@dataclass(frozen=True, kw_only=True)
class TrainingImages:
    """What to learn from."""

    panel = options.IMAGES
    images: str | None = option(
        "In place of the recipe's data set: an image folder, a .npz file or module:function."
    )
    validation: str | None = option("Validation images of the same kind.")
    num: int | None = option("Train on at most this many images.", "--num", "-n", min=1)
    data_dir: Path | None = options.data_folder()
    download: bool = options.may_download()


@dataclass(frozen=True, kw_only=True)
class Loop:
    """How to run the training."""

    panel = "Training"
    resume: bool = option("Resume from OUT, or start over.", default=True)
    early_stop: int | None = option(
        "Stop after this many epochs without a gain in robust accuracy.", min=1
    )
    amp: bool = option("Compute in bfloat16 where safe.", default=False)
    compile: bool = option("Use torch.compile.", default=False)
    workers: int = option(
        "Processes that read an image folder as needed; 0 reads it into memory once.",
        default=0,
        min=0,
    )


def train(
    *,
    recipe: str = options.required("See `cpr-wrap list recipes`."),
    out: Path = options.required("Folder for the state and the model."),
    changes: Changes,
    images: TrainingImages,
    loop: Loop,
    common: Common,
) -> None:
    """Train a network by a recipe, and save it so that `local:OUT` loads it with its rule.

    The training is resumable by the same command. Several processes share every batch when started
    by `torchrun --nproc-per-node N -m -- cpr_wrap train …`.

    Example: cpr-wrap train --recipe mnist-compact-at --out runs/at
    """
    from cpr_wrap._registry import find
    from cpr_wrap.training import RECIPES
    from cpr_wrap.training import train as train_network

    chosen = _changed(find(RECIPES, recipe), changes)
    address = changes.network if ":" in (changes.network or "") else None
    found = None if address is None else _find_network(address, pretrained=False)
    data, validation = _load_images(images, chosen, found, lazily=loop.workers > 0)
    given = {} if address is None else _given(address, changes, chosen, data)
    if images.images is not None:
        chosen = replace(chosen, dataset=data.name)
    device = _load.pick_device(common.device)
    given |= {"out": out, "validation": validation, "device": device, **asdict(loop)}
    with _load.several_processes(device) as leads:
        with resumable(f"the last state is in {out}"):
            result = train_network(chosen, data, **given)
        if leads:
            _print(result, out, common, options.own_code(address))


def _changed(recipe: Recipe, changes: Changes) -> Recipe:
    from cpr_wrap._registry import find
    from cpr_wrap.training import METHODS, FastAT

    names = ("network", "epochs", "batch_size", "lr", "seed")
    wanted = {name: getattr(changes, name) for name in names}
    new: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if ":" in new.get("network", ""):
        del new["network"]  # an address: the network is given, and the recipe's is not read
    method = recipe.method
    if changes.method is not None:
        # What makes an attack strong stays; how it starts is the new method's own.
        kind = find(METHODS, changes.method)
        common = {field.name for field in fields(kind)} & {field.name for field in fields(method)}
        kept = common & {"eps", "steps", "step_size", "norm"}
        if FastAT in (kind, type(method)):
            kept -= {"steps", "step_size"}  # one long step is fast AT's, and no other method's
        method = kind(**{name: getattr(method, name) for name in kept})
    if changes.eps is not None:
        if not hasattr(method, "eps"):
            raise ValueError(f"method {method.name!r} does not attack, so it takes no --eps")
        method = method.scaled(changes.eps / method.eps)
    return replace(recipe.with_method(method), **new)


def _find_network(address: str, *, pretrained: bool, **settings: Any) -> ZooModel:
    """The network behind an address of a model or of your own code, `module:Class`."""
    from cpr_wrap.zoo import ZOOS, ZooModel, load_network
    from cpr_wrap.zoo.local import given_network

    if address.partition(":")[0] in ZOOS:
        return load_network(address, pretrained=pretrained, network_settings=settings)
    network = given_network(address, settings)
    return ZooModel(network=network, address=address, source={"network": address})


def _given(
    address: str, changes: Changes, recipe: Recipe, data: ImageData | FolderImages
) -> dict[str, Any]:
    """The network behind an address, with as many outputs as the method and the images need."""
    import torch

    settings: dict[str, Any] = {}
    if address.partition(":")[0] in ("timm", "hf-hub"):
        settings = {"num_classes": data.num_classes + recipe.method.extra_outputs}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # of the initial weights
        found = _find_network(address, pretrained=changes.pretrained, **settings)
    source = {"network_settings": settings, **found.source}
    names = ("base", "network", "network_settings")
    known = {name: source[name] for name in names if name in source}
    return {"network": found.network, "source": known}


def _load_images(
    chosen: TrainingImages, recipe: Recipe, found: ZooModel | None, *, lazily: bool
) -> tuple[ImageData | FolderImages, ImageData | None]:
    from cpr_wrap.data import FolderImages, load_data

    fit: dict[str, Any] = {}
    if found is not None:
        fit = {"transform": found.transform, "channels": found.channels}
    where: dict[str, Any] = {"data_dir": chosen.data_dir, "download": chosen.download}
    validation = None
    if chosen.validation is not None:
        validation = load_data(chosen.validation, "validation", **where, **fit)
    if chosen.images is None:
        data = load_data(recipe.dataset, "train", num=chosen.num, **where)
        return data, validation or load_data(recipe.dataset, "validation", **where)
    folders = [Path(name) for name in (chosen.images, chosen.validation) if name]
    if len(folders) == 2 and all(folder.is_dir() for folder in folders):
        _check_classes(*folders)
    if lazily and folders[0].is_dir():
        return FolderImages(folders[0], num=chosen.num, **fit), validation
    return load_data(chosen.images, "train", num=chosen.num, **where, **fit), validation


def _check_classes(images: Path, validation: Path) -> None:
    """Classes are numbered by their folders, so a missing one would shift all that follow."""
    ours, theirs = (
        {entry.name for entry in folder.iterdir() if entry.is_dir()}
        for folder in (images, validation)
    )
    if ours != theirs:
        raise ValueError(
            f"--validation: expected the class folders of {images}, got others in {validation}: "
            f"{', '.join(sorted(ours ^ theirs))} only in one of both"
        )


def _print(result: TrainingResult, out: Path, common: Common, network: str) -> None:
    last = result.history[-1]
    _show.answer(
        common,
        {"folder": result.folder, "history": result.history},
        f"{len(result.history)} epochs, loss {last.loss:.3f}; on validation images "
        f"{_show.percent(last.validation_clean)} clean, "
        f"{_show.percent(last.validation_robust)} under attack",
        f"saved to {out}; next: cpr-wrap curve local:{out}{network} --num 100",
    )
