"""`train`: any method on any network and any images, resumable, on several processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpr_wrap.data import load_data
from cpr_wrap.networks import build_network, network_settings
from cpr_wrap.training.data import Images, TrainingData
from cpr_wrap.training.distributed import choose_device
from cpr_wrap.training.recipes import RECIPES, Recipe
from cpr_wrap.training.trainer import Trainer, TrainingResult


def train(
    recipe: Recipe | str,
    data: Images | None = None,
    *,
    out: str | Path | None = None,
    network: nn.Module | None = None,
    source: Mapping[str, Any] | None = None,
    validation: Images | None = None,
    num_classes: int | None = None,
    resume: bool = True,
    early_stop: int | None = None,
    device: str | torch.device | None = None,
    amp: bool = False,
    compile: bool = False,  # noqa: A002
    workers: int = 0,
    save_seconds: float = 90.0,
    progress: bool = True,
) -> TrainingResult:
    """Train a network by a recipe.

    Started by `torchrun`, the processes share every batch. The result is that of a single process,
    except for rounding, dropout, and batch norm, which sees each share alone.

    Args:
        recipe: A recipe, or the name of one in `RECIPES`.
        data: Images in [0, 1] with labels; the recipe's own training set if None.
        out: Folder for the state and the trained model; nothing is written if None.
        network: A network from images to outputs `(N, k + method.extra_outputs)`, which is
            trained in place; the recipe's own if None.
        source: How to build `network` again, for `load("local:OUT")`, e.g. `{"base":
            "timm:resnet18", "network_settings": {"num_classes": 5}}`.
        validation: Images for the accuracies after each epoch and for the threshold of the
            method's rule. The recipe's own if both this and `data` are None.
        num_classes: k, if the data set has no such attribute.
        resume: Resume from the state in `out`, if there is one; False starts over.
        early_stop: Stop if the robust accuracy on validation images has not improved for this many
            epochs, and keep the weights of the best epoch.
        device: Where to train; by default a GPU if there is one.
        amp: Run the network in bfloat16 where that is safe.
        compile: Run the network through `torch.compile`.
        workers: Processes that load the images of a torch data set.
        save_seconds: Write the state at least this often, and after each epoch.
        progress: Show progress on standard error.

    Returns:
        The network and the history. An interrupted and resumed training gives the same result.
    """
    if isinstance(recipe, str):
        recipe = RECIPES[recipe]
    if data is None:
        data = load_data(recipe.dataset, "train")
        if validation is None:
            validation = load_data(recipe.dataset, "validation")
    place = choose_device(device)
    images = TrainingData(data, num_classes, workers)
    source = {"network": None, **(source or {})}
    if network is None:
        outputs = images.num_classes + recipe.method.extra_outputs
        shape = tuple(images.first().shape[1:])
        settings = network_settings(
            recipe.network, shape, outputs, auxiliary=recipe.method.auxiliary
        )
        network = build_network(recipe.network, seed=recipe.seed, **settings)
        source = {"network": recipe.network, "network_settings": settings}
    trainer = Trainer(
        recipe=recipe,
        images=images,
        validation=None if validation is None else TrainingData(validation, images.num_classes),
        network=network.to(place).to(memory_format=torch.channels_last),
        source=source,
        device=place,
        out=None if out is None else Path(out),
        early_stop=early_stop,
        amp=amp,
        save_seconds=save_seconds,
    )
    trainer.prepare(compile_network=compile, resume=resume)
    return trainer.run(show=progress)
