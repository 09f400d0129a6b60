"""From options to the model and the images that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from cpr_wrap.cli._run import command_line, mention
from cpr_wrap.cli._settings import rule_options
from cpr_wrap.cli.options import Common, DataOptions, DeviceName, ModelOptions

if TYPE_CHECKING:
    import torch

    from cpr_wrap.calibration import CalibrationRecord
    from cpr_wrap.data import ImageData
    from cpr_wrap.metrics import About
    from cpr_wrap.selective import SelectiveClassifier
    from cpr_wrap.zoo import ZooModel


class Loaded(NamedTuple):
    """A model, and what its source knows about it."""

    model: SelectiveClassifier
    facts: ZooModel


def short_name(address: str) -> str:
    """The last word of a model's address, for names of runs."""
    return address.rpartition(":")[2].rstrip("/").rpartition("/")[2]


def about(
    name: str, facts: ZooModel, data: ImageData, network: str | None, common: Common
) -> About:
    """What a result says of its run, so that it can be checked and made again."""
    from cpr_wrap.metrics import About

    return About(
        name=name,
        model=facts.address,
        network=network or "",
        imports=tuple(common.imports or ()),
        dataset=data.name,
        part=data.part,
        dataset_note=data.note,
        command=command_line(),
        trained_eps=facts.trained_eps,
    )


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


@contextmanager
def several_processes(device: torch.device) -> Iterator[bool]:
    """Join the processes of this command, if there are several, and part from them at the end.

    Yields:
        Whether this is the process that prints and writes.
    """
    import torch.distributed as dist

    from cpr_wrap.training.distributed import join_group

    joined_before = dist.is_available() and dist.is_initialized()
    group = join_group(device)
    try:
        yield group.leads
    finally:
        if group.world > 1 and not joined_before:
            dist.destroy_process_group()


def load_model(address: str, options: ModelOptions, device: torch.device) -> Loaded:
    """Load a model and put it under the rule that the options ask for."""
    from cpr_wrap.rule import find_rule
    from cpr_wrap.zoo import load_network, wrap

    # An unknown rule or norm is better found before a download than after.
    rule = None if options.rule is None else find_rule(options.rule).name
    threat_norm(options, None)
    facts = load_network(address, model_dir=options.model_dir, network=options.network)
    rule = rule or _implied_rule(options, facts)
    settings = _rule_settings(rule or facts.rule.name, options, facts)  # type: ignore[union-attr]
    return Loaded(wrap(facts, rule, device=device, **settings), facts)


def _implied_rule(options: ModelOptions, facts: ZooModel) -> str | None:
    """The rule that is meant where none is named; None is the model's own."""
    from cpr_wrap.rule import DEFAULT_RULE

    if facts.rule is None:
        return DEFAULT_RULE
    # A network saved without rejection is made for no rule in particular.
    wants_another = options.radius or options.steps or options.step_size
    return DEFAULT_RULE if not facts.rule.can_reject and wants_another else None


def _rule_settings(rule: str, options: ModelOptions, facts: ZooModel) -> dict[str, Any]:
    from cpr_wrap.selective import RULES

    kind = RULES[rule]
    names = ("radius", "steps", "step_size", "threshold")
    settings = {name: getattr(options, name) for name in names}
    settings = {name: value for name, value in settings.items() if value is not None}
    known = [field.name for field in fields(kind)]
    for name in settings:
        if name not in known:
            raise typer.BadParameter(f"rule {rule} takes no {name}; it takes {', '.join(known)}")
    own = facts.rule is not None and facts.rule.name == rule
    if "norm" in known and (options.norm or not own):
        settings["norm"] = threat_norm(options, facts)
    return settings | rule_options(kind, options.settings or ())


def threat_norm(options: ModelOptions, facts: ZooModel | None) -> str:
    """The norm asked for, in any case, or else the one that the model was made for."""
    from cpr_wrap.geometry import threat

    try:
        return threat(options.norm or (facts and facts.norm) or "Linf").name
    except LookupError as error:
        raise typer.BadParameter(f"--norm: {error}") from error


def threat_eps(eps: float | None, facts: ZooModel) -> float:
    """The budget asked for, or else the one that the model was made for."""
    if eps is None and facts.eps is None:
        raise typer.BadParameter(
            f"{facts.address} does not say for which budget it was made; pass --eps, e.g. 8/255"
        )
    return facts.eps if eps is None else eps  # type: ignore[return-value]


def load_images(options: DataOptions, facts: ZooModel, part: str | None = None) -> ImageData:
    """Load the images that are asked for, and see that they fit the model.

    Args:
        options: Which images.
        facts: The model.
        part: Of a known data set; by default the part for robustness, or of all test images those
            with the numbers that are asked for.
    """
    from cpr_wrap.data import DATASETS, load_data

    name = options.dataset or facts.dataset
    if name is None:
        raise typer.BadParameter(
            f"{facts.address} does not say which images it is for; pass --dataset with one of "
            f"{', '.join(DATASETS)}, a folder of images, a .npz file or module:function"
        )
    chosen = options.start is not None or options.indices is not None
    data = load_data(
        name,
        part or ("test" if chosen else "robust"),
        options.data_dir,
        options.download,
        options.num,
        start=options.start,
        indices=options.indices,
        transform=facts.transform,
        channels=facts.channels,
        class_map=options.class_map,
    )
    if data.note:
        mention(f"note: {data.note}")
    _check_fit(data, facts, options)
    return data


def _check_fit(data: ImageData, facts: ZooModel, options: DataOptions) -> None:
    """Refuse images that the model was not made for, before its layers do in their own words."""
    shape = tuple(data.images.shape[1:])
    if facts.input_shape is not None and shape != facts.input_shape:
        raise ValueError(
            f"{facts.address} takes images of shape {facts.input_shape}, {data.name} has {shape}; "
            "choose another --dataset; images in a folder are resized to the model's size if "
            "the model declares it"
        )
    ordered = data.part == "folder" and options.class_map is None
    if ordered and facts.num_classes is not None and data.num_classes != facts.num_classes:
        mention(
            f"warning: {data.name} has {data.num_classes} classes and {facts.address} "
            f"{facts.num_classes}; classes are numbered in the order of the folders' names, "
            "--class-map sets another numbering"
        )


def calibrated(
    model: SelectiveClassifier, rate: float, data: ImageData
) -> tuple[SelectiveClassifier, CalibrationRecord]:
    """Set the rule on some images so that it rejects that share of right answers."""
    from cpr_wrap.calibration import calibrate
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation.preflight import preflight
    from cpr_wrap.selective import network_device

    device = network_device(model.base)
    images, labels = data.images.to(device), data.labels.to(device)
    with busy("calibrating"):
        preflight(model, images)
        found = calibrate(model, images, labels, rate)
    return found.model, found.record


def validation_images(
    options: DataOptions, facts: ZooModel, name: str | None, tested: ImageData
) -> ImageData:
    """Images to set a rule on before it is tested on others.

    Args:
        options: The images of the test.
        facts: The model.
        name: The images; by default the validation part of the data set that is tested on.
        tested: What the rule will be tested on.
    """
    from cpr_wrap.data import DATASETS, LOADERS

    name = name or options.dataset or facts.dataset or ""
    if name == options.dataset and not (name in DATASETS or name in LOADERS):
        raise typer.BadParameter(
            f"{name} has no validation part; pass --validation with other images"
        )
    whole = replace(options, dataset=name, num=None, start=None, indices=None)
    data = load_images(whole, facts, "validation")
    if data.name == tested.name and set(data.indices.tolist()) & set(tested.indices.tolist()):
        mention(f"warning: some images of {data.name} are used for both calibration and test")
    return data


def warn_of_open_rule(model: SelectiveClassifier) -> None:
    """Say so if a rule accepts everything because nobody has set its threshold."""
    rule = model.rule
    if rule.can_reject and rule.accepts_everything:
        mention(
            f"warning: rule {rule.name} accepts everything at threshold {rule.threshold:g}; "
            "pass --threshold, or --calibrate 0.01"
        )
