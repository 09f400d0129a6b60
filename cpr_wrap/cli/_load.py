"""From options to the model and the images that they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from cpr_wrap.cli._run import mention
from cpr_wrap.cli.options import DataOptions, DeviceName, ModelOptions

if TYPE_CHECKING:
    import torch

    from cpr_wrap.calibration import CalibrationRecord
    from cpr_wrap.data import ImageData
    from cpr_wrap.selective import SelectiveClassifier
    from cpr_wrap.zoo import ZooModel

# A score that nothing falls short of: what these rules have before anybody sets a threshold.
_NEED_A_THRESHOLD = ("confidence", "atrr")


class Loaded(NamedTuple):
    """A model, and what its source knows about it."""

    model: SelectiveClassifier
    facts: ZooModel


def pick_device(name: DeviceName) -> torch.device:
    """The device of that name, if this machine has one."""
    import torch

    from cpr_wrap.training.distributed import choose_device

    there = {
        DeviceName.cuda: torch.cuda.is_available(),
        DeviceName.mps: torch.backends.mps.is_available(),
    }
    if not there.get(name, True):
        raise ValueError(f"this machine has no {name.value} device; use --device auto or cpu")
    if name is DeviceName.cpu or name is DeviceName.mps:
        return torch.device(name.value)
    return choose_device(None)  # under torchrun each process its own GPU


def load_model(address: str, options: ModelOptions, device: torch.device) -> Loaded:
    """Load a model and put it under the rule that the options ask for."""
    from cpr_wrap.selective import RULES
    from cpr_wrap.zoo import load_network, wrap

    if options.rule is not None:
        RULES[options.rule]  # an unknown one is better found before a download than after
    facts = load_network(address, model_dir=options.model_dir, network=options.network)
    rule = options.rule or _implied_rule(options, facts)
    settings = _rule_settings(rule or facts.rule.name, options, facts)  # type: ignore[union-attr]
    return Loaded(wrap(facts, rule, device=device, **settings), facts)


def _implied_rule(options: ModelOptions, facts: ZooModel) -> str | None:
    """The rule that is meant where none is named; None is the model's own."""
    if facts.rule is None:
        return "cpr"
    # A network saved without rejection is made for no rule in particular; a radius is for CPR.
    wants_cpr = options.radius or options.steps or options.step_size
    return "cpr" if facts.rule.name == "none" and wants_cpr else None


def _rule_settings(rule: str, options: ModelOptions, facts: ZooModel) -> dict[str, Any]:
    from cpr_wrap.selective import RULES

    names = ("radius", "steps", "step_size", "threshold")
    settings = {name: getattr(options, name) for name in names}
    settings = {name: value for name, value in settings.items() if value is not None}
    own = facts.rule is not None and facts.rule.name == rule
    if "norm" in RULES[rule].__dataclass_fields__ and (options.norm or not own):
        settings["norm"] = threat_norm(options, facts)
    return settings


def threat_norm(options: ModelOptions, facts: ZooModel) -> str:
    """The norm asked for, or else the one that the model was made for."""
    return options.norm.value if options.norm else facts.norm or "Linf"


def threat_eps(eps: float | None, facts: ZooModel) -> float:
    """The budget asked for, or else the one that the model was made for."""
    if eps is None and facts.eps is None:
        raise typer.BadParameter(
            f"{facts.address} does not say for which budget it was made; pass --eps, e.g. 8/255"
        )
    return facts.eps if eps is None else eps  # type: ignore[return-value]


def load_images(options: DataOptions, facts: ZooModel, part: str = "robust") -> ImageData:
    """Load images by the name of their data set, or from a folder."""
    from cpr_wrap.data import DATASETS, load_data, load_folder

    name = options.dataset or facts.dataset
    if name is None:
        raise typer.BadParameter(
            f"{facts.address} does not say which images it is for; pass --dataset with one of "
            f"{', '.join(DATASETS)} or a folder of images"
        )
    if name not in DATASETS and Path(name).is_dir():
        data = load_folder(name, facts.transform, options.num)
    else:
        data = load_data(name, part, options.data_dir, options.download, options.num)
    if data.note:
        mention(f"note: {data.note}")
    _check_fit(data, facts)
    return data


def _check_fit(data: ImageData, facts: ZooModel) -> None:
    """Refuse images that the model was not made for, before its layers do in their own words."""
    shape = tuple(data.images.shape[1:])
    if facts.input_shape is not None and shape != facts.input_shape:
        raise ValueError(
            f"{facts.address} takes images of shape {facts.input_shape}, {data.name} has {shape}; "
            "choose another --dataset: a folder of images is brought to the model's size where "
            "the model knows how"
        )
    if facts.num_classes is not None and data.num_classes != facts.num_classes:
        mention(
            f"warning: {data.name} has {data.num_classes} classes and {facts.address} "
            f"{facts.num_classes}; labels are numbered in the order of the folders' names"
        )


def calibrated(
    model: SelectiveClassifier, rate: float, options: DataOptions, facts: ZooModel
) -> tuple[SelectiveClassifier, CalibrationRecord]:
    """Set the rule on validation images so that it rejects that share of right answers."""
    import torch

    from cpr_wrap.calibration import calibrate
    from cpr_wrap.data import DATASETS

    name = options.validation or options.dataset or facts.dataset
    folder = name is not None and name not in DATASETS and Path(name).is_dir()
    if folder and options.validation is None:
        raise typer.BadParameter(
            "an image folder has no part to calibrate on; pass --validation with another folder"
        )
    data = load_images(replace(options, dataset=name, num=None), facts, "validation")
    device = next((p.device for p in model.base.parameters()), torch.device("cpu"))
    found = calibrate(model, data.images.to(device), data.labels.to(device), rate)
    return found.model, found.record


def warn_of_open_rule(model: SelectiveClassifier) -> None:
    """Say so if a rule accepts everything because nobody has set its threshold."""
    rule = model.rule
    if rule.name in _NEED_A_THRESHOLD and rule.threshold <= 0:
        mention(
            f"warning: rule {rule.name} accepts everything at threshold {rule.threshold:g}; "
            "pass --threshold, or --calibrate 0.01"
        )
