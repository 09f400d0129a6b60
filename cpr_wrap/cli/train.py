"""`cpr-wrap train`: a robust network for those who have none."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpr_wrap.cli import _show
from cpr_wrap.cli._load import pick_device, several_processes
from cpr_wrap.cli._run import resumable
from cpr_wrap.cli.options import IMAGES, Common, DataDir, Download, number, option, own_code

if TYPE_CHECKING:
    from cpr_wrap.data import FolderImages, ImageData
    from cpr_wrap.training import Recipe, TrainingResult
    from cpr_wrap.zoo import ZooModel

_RECIPE, _LOOP = "Changes to the recipe", "Training"


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What to do otherwise than the recipe says."""

    method: Annotated[str | None, option("Train by this method.", panel=_RECIPE)] = None
    network: Annotated[
        str | None,
        option(
            "Train this network: a name like resnet20, timm:resnet18 or module:Class.",
            panel=_RECIPE,
        ),
    ] = None
    pretrained: Annotated[
        bool,
        typer.Option(
            "--pretrained/--from-scratch",
            help="Load the pretrained weights of a network given by address.",
            rich_help_panel=_RECIPE,
        ),
    ] = True
    epochs: Annotated[int | None, option("Epochs.", panel=_RECIPE, min=1)] = None
    batch_size: Annotated[
        int | None, option("Batch size of a training step.", panel=_RECIPE, min=1)
    ] = None
    lr: Annotated[float | None, option("Learning rate.", panel=_RECIPE)] = None
    seed: Annotated[int | None, option("Seed of all random numbers.", panel=_RECIPE)] = None
    eps: Annotated[
        float | None, number("Perturbation budget in training, e.g. 8/255.", panel=_RECIPE)
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrainingImages:
    """What to learn from."""

    images: Annotated[
        str | None,
        option(
            "In place of the recipe's data set: an image folder, a .npz file or module:function.",
            panel=IMAGES,
        ),
    ] = None
    validation: Annotated[
        str | None, option("Validation images of the same kind.", panel=IMAGES)
    ] = None
    num: Annotated[
        int | None, option("Train on at most this many images.", "--num", "-n", panel=IMAGES, min=1)
    ] = None
    data_dir: DataDir = None
    download: Download = False


@dataclass(frozen=True, kw_only=True)
class Loop:
    """How to run the training."""

    resume: Annotated[
        bool,
        typer.Option(help="Resume from OUT, or start over.", rich_help_panel=_LOOP),
    ] = True
    early_stop: Annotated[
        int | None,
        option(
            "Stop after this many epochs without a gain in robust accuracy.", panel=_LOOP, min=1
        ),
    ] = None
    amp: Annotated[bool, option("Compute in bfloat16 where safe.", "--amp", panel=_LOOP)] = False
    compile: Annotated[bool, option("Use torch.compile.", "--compile", panel=_LOOP)] = False
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Processes that read an image folder as needed; 0 reads it into memory once.",
            rich_help_panel=_LOOP,
        ),
    ] = 0


def train(
    *,
    recipe: Annotated[str, typer.Option(help="See `cpr-wrap list recipes`.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder for the state and the model.", show_default=False)
    ],
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
    from cpr_wrap._address import find
    from cpr_wrap.training import RECIPES
    from cpr_wrap.training import train as train_network

    chosen = _changed(find(RECIPES, recipe), changes)
    address = changes.network if ":" in (changes.network or "") else None
    found = None if address is None else _find_network(address, pretrained=False)
    data, validation = _load(images, chosen, found, lazily=loop.workers > 0)
    given = {} if address is None else _given(address, changes, chosen, data)
    if images.images is not None:
        chosen = replace(chosen, dataset=data.name)
    device = pick_device(common.device)
    with several_processes(device) as leads:
        with resumable(f"the last state is in {out}"):
            result = train_network(
                chosen,
                data,
                out=out,
                validation=validation,
                resume=loop.resume,
                early_stop=loop.early_stop,
                device=device,
                amp=loop.amp,
                compile=loop.compile,
                workers=loop.workers,
                **given,
            )
        if leads:
            _print(result, out, common, own_code(address))


def _changed(recipe: Recipe, changes: Changes) -> Recipe:
    from cpr_wrap._address import find
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
        method = method.scaled(changes.eps / _eps(method))
    return replace(recipe.with_method(method), **new)


def _eps(method: Any) -> float:
    if not hasattr(method, "eps"):
        raise ValueError(f"method {method.name!r} does not attack, so it takes no --eps")
    return float(method.eps)


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
    return {
        "network": found.network,
        "source": {name: source[name] for name in names if name in source},
    }


def _load(
    options: TrainingImages, recipe: Recipe, found: ZooModel | None, *, lazily: bool
) -> tuple[ImageData | FolderImages, ImageData | None]:
    from cpr_wrap.data import FolderImages, load_data

    fit: dict[str, Any] = {}
    if found is not None:
        fit = {"transform": found.transform, "channels": found.channels}
    where: dict[str, Any] = {"data_dir": options.data_dir, "download": options.download}
    validation = None
    if options.validation is not None:
        validation = load_data(options.validation, "validation", **where, **fit)
    if options.images is None:
        data = load_data(recipe.dataset, "train", num=options.num, **where)
        return data, validation or load_data(recipe.dataset, "validation", **where)
    folders = [Path(name) for name in (options.images, options.validation) if name]
    if len(folders) == 2 and all(folder.is_dir() for folder in folders):
        _check_classes(*folders)
    if lazily and folders[0].is_dir():
        return FolderImages(folders[0], num=options.num, **fit), validation
    return load_data(options.images, "train", num=options.num, **where, **fit), validation


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
    if common.as_json:
        _show.print_json({"folder": result.folder, "history": result.history})
        return
    last = result.history[-1]
    typer.echo(
        f"{len(result.history)} epochs, loss {last.loss:.3f}; on validation images "
        f"{_show.percent(last.validation_clean)} clean, "
        f"{_show.percent(last.validation_robust)} under attack"
    )
    typer.echo(f"saved to {out}; next: cpr-wrap curve local:{out}{network} --num 100")
