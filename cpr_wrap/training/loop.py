"""`train`: any method on any network and any images, resumable, on several processes.

The trained model is saved for `cpr_wrap.load("local:FOLDER")`.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cpr_wrap import __version__
from cpr_wrap.calibration import calibrate
from cpr_wrap.data import load_data
from cpr_wrap.engine import ranks
from cpr_wrap.networks import build_network, network_settings
from cpr_wrap.rule import ByQuantile
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.training.data import Images, TrainingData
from cpr_wrap.training.distributed import choose_device
from cpr_wrap.training.measure import EpochRecord
from cpr_wrap.training.recipes import RECIPES, Recipe, describe_recipe
from cpr_wrap.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A finished training."""

    network: nn.Module  #: The trained network, in eval mode.
    history: tuple[EpochRecord, ...]  #: One record per epoch.
    folder: Path | None  #: Where the model was written; None if it was not.


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
    images = TrainingData(data, num_classes, workers)
    shape, classes = tuple(images.first.shape[1:]), images.num_classes
    source = {"network": None, **(source or {})}
    if network is None:
        outputs, auxiliary = classes + recipe.method.extra_outputs, recipe.method.auxiliary
        settings = network_settings(recipe.network, shape, outputs, auxiliary=auxiliary)
        network = build_network(recipe.network, seed=recipe.seed, **settings)
        source = {"network": recipe.network, "network_settings": settings}
    place = choose_device(device)
    trainer = Trainer(
        recipe=recipe,
        images=images,
        validation=None if validation is None else TrainingData(validation, classes),
        network=network.to(place).to(memory_format=torch.channels_last),
        device=place,
        out=None if out is None else Path(out),
        resume=resume,
        early_stop=early_stop,
        amp=amp,
        compile=compile,
        save_seconds=save_seconds,
    )
    trainer.run(show=progress)
    if trainer.out is not None and trainer.leads:
        facts = {"input_shape": list(shape), "num_classes": classes, "dataset": images.name}
        told = (trainer.held_out, trainer.history, {**source, **facts})
        finished_model(recipe, network, *told).save(trainer.out)
    ranks.barrier()  # nobody returns before the model is written
    return TrainingResult(network=network, history=tuple(trainer.history), folder=trainer.out)


def finished_model(
    recipe: Recipe,
    network: nn.Module,
    validation: tuple[Tensor, Tensor] | None,
    history: Sequence[EpochRecord],
    facts: Mapping[str, Any],
) -> SelectiveClassifier:
    """A trained network, in eval mode, with its rule, whose threshold is set on validation images.

    Its source is all that is known about it: `facts` are how to build it again, and what images it
    takes.
    """
    method, rule = recipe.method, recipe.rule
    threat = {name: getattr(method, name) for name in ("norm", "eps") if hasattr(method, name)}
    versions = {"cpr_wrap": __version__, "torch": torch.__version__}
    source = {
        **facts,
        **threat,
        "recipe": describe_recipe(recipe),
        "history": [asdict(record) for record in history],
        "versions": {**versions, "python": platform.python_version()},
    }
    model = SelectiveClassifier(network, rule, source)
    if not isinstance(rule.calibrated_by, ByQuantile):
        return model
    if validation is None:
        warnings.warn(
            f"no validation images: the threshold of rule {rule.name!r} stays {rule.threshold:g}, "
            "which accepts everything; set it with calibrate, or pass validation=",
            stacklevel=2,
        )
        return model
    return calibrate(model, *validation, recipe.reject_rate).model
