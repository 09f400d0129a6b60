"""`cpr-wrap train`: a robust network for those who have none."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from cpr_wrap._registry import find
from cpr_wrap.cli import _load, _show
from cpr_wrap.cli._run import answer, resumable
from cpr_wrap.cli.commands import Changes, Loop, Train, TrainingImages
from cpr_wrap.data import FolderImages, ImageData, load_data
from cpr_wrap.training import METHODS, RECIPES, FastAT, Recipe, TrainingResult
from cpr_wrap.training import train as train_network
from cpr_wrap.zoo import ZOOS, ZooModel, load_network
from cpr_wrap.zoo.local import given_network


def train(options: Train) -> None:
    """Train by a recipe, with the changes that are asked for."""
    recipe, out = changed(find(RECIPES, options.recipe), options), options.out
    address = options.network if ":" in (options.network or "") else None
    found = None if address is None else _find_network(address, pretrained=False)
    data, validation = _load_images(options, recipe, found, lazily=options.workers > 0)
    given = {} if address is None else _given(address, options, recipe, data)
    if options.images is not None:
        recipe = replace(recipe, dataset=data.name)
    device = _load.pick_device(options.device)
    given |= {field.name: getattr(options, field.name) for field in fields(Loop)}
    with _load.several_processes(device) as leads:
        with resumable(f"the last state is in {out}"):
            result = train_network(
                recipe, data, out=out, validation=validation, device=device, **given
            )
        if leads:
            _print(result, options, _load.own_code(address))


def changed(recipe: Recipe, changes: Changes) -> Recipe:
    """The recipe with the changes; a new method keeps what makes an attack strong."""
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
    if address.partition(":")[0] in ZOOS:
        return load_network(address, pretrained=pretrained, network_settings=settings)
    network = given_network(address, settings)
    return ZooModel(network=network, address=address, source={"network": address})


def _given(
    address: str, changes: Changes, recipe: Recipe, data: ImageData | FolderImages
) -> dict[str, Any]:
    """The network behind an address, with as many outputs as the method and the images need."""
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


def _print(result: TrainingResult, options: Train, network: str) -> None:
    last = result.history[-1]
    answer(
        options,
        {"folder": result.folder, "history": result.history},
        f"{len(result.history)} epochs, loss {last.loss:.3f}; on validation images "
        f"{_show.percent(last.validation_clean)} clean, "
        f"{_show.percent(last.validation_robust)} under attack",
        f"saved to {options.out}; next: cpr-wrap curve local:{options.out}{network} --num 100",
    )
