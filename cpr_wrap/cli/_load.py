"""From options to the model and the images that they name."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer

from cpr_wrap._registry import near
from cpr_wrap._text import eps_text
from cpr_wrap.attacks.ensemble import Budget
from cpr_wrap.calibration import Calibration, calibrate
from cpr_wrap.cli._run import command_line, mention
from cpr_wrap.cli.commands import Sweep
from cpr_wrap.cli.options import Calibrated, DataOptions, Evaluation, ModelOptions, fraction
from cpr_wrap.data import DATASETS, LOADERS, ImageData, load_data
from cpr_wrap.engine import ranks
from cpr_wrap.engine.images import source_of
from cpr_wrap.engine.progress import busy
from cpr_wrap.evaluation.preflight import preflight, try_attacks
from cpr_wrap.evaluation.sweep import NO_ATTACKS, Task
from cpr_wrap.geometry import threat
from cpr_wrap.metrics import About
from cpr_wrap.rule import DEFAULT_RULE, RejectionRule, find_rule
from cpr_wrap.selective import SelectiveClassifier, network_device
from cpr_wrap.training.distributed import choose_device
from cpr_wrap.zoo import ZOOS, ZooModel, load_network, wrap


class Loaded(NamedTuple):
    """A model, and what its source knows about it."""

    model: SelectiveClassifier
    facts: ZooModel


def load_task(
    options: Evaluation, loaded: Loaded, budget: Budget = NO_ATTACKS, extras: Sequence[Any] = ()
) -> Task:
    """Load images for a model; the threat is the one asked for, or else the model's own."""
    images, facts = load_images(options, loaded.facts), loaded.facts
    eps, norm = threat_eps(options.eps, facts), threat_norm(options, facts)
    task = make_task(options, loaded, images, eps, norm)
    return replace(task, budget=budget, extras=extras)


def make_task(
    options: Evaluation | Sweep, loaded: Loaded, images: ImageData, eps: float, norm: str
) -> Task:
    """An evaluation, with what a result says of its run to be checked and made again."""
    model, facts = loaded
    about = About(
        name=run_name(facts.address, model.rule.name, f"{norm}-{eps_text(eps)}"),
        model=facts.address,
        network=options.network or "",
        imports=tuple(options.imports or ()),
        dataset=images.name,
        part=images.part,
        dataset_note=images.note,
        command=command_line(),
        trained_eps=facts.trained_eps,
    )
    return Task(about=about, model=model, data=images, eps=eps, norm=norm)


def calibrated_task(
    task: Task, rate: float | None, options: Calibrated | Sweep, facts: ZooModel
) -> Task:
    """The task with its rule set on validation images, if a rate is given."""
    if rate is not None:
        source = source_of(task.data.images, task.data.labels, None)
        try_attacks(task.extras, task.model, source, task.eps, task.norm)
        held_out = validation_images(options, facts, options.validation, task.data)
        model, record = calibrated(task.model, rate, held_out)
        task = replace(task, model=model, calibration=record)
    warn_of_open_rule(task.model)
    return task


def run_name(address: str, *words: str) -> str:
    """A name for a run of the model at an address."""
    return "+".join((address.rpartition(":")[2].rstrip("/").rpartition("/")[2], *words))


def file_name(name: str) -> str:
    """A run's name as that of its folder."""
    return re.sub(r"[^\w.+=-]", "-", name)


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file that nobody said may go."""
    if path.exists() and not overwrite:
        raise typer.BadParameter(f"{path} exists; choose another file, or pass --overwrite")


def own_code(network: str | None) -> str:
    """The option to type for your own network; empty for one of the package's or a zoo's."""
    source, colon, _ = (network or "").partition(":")
    return f" --network {network}" if colon and source not in ZOOS else ""


def pick_device(name: str) -> torch.device:
    """The device of that name, if this machine has one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(name, True):
        raise ValueError(f"this machine has no {name} device; use --device auto or cpu")
    # Under torchrun each process takes its own GPU.
    return choose_device(name if name in ("cpu", "mps") else None)


@contextmanager
def several_processes(device: torch.device) -> Iterator[bool]:
    """Join the processes of this command, if there are several; yields whether this one leads."""
    joined_before = ranks.together()
    ranks.join(device)
    try:
        yield ranks.rank() == 0
    finally:
        if not joined_before:
            ranks.leave(wait=False)


def load_model(options: ModelOptions, device: torch.device) -> Loaded:
    """Load a model and put it under the rule that the options ask for."""
    # An unknown rule or norm is better found before a download than after.
    if options.rule is not None:
        find_rule(options.rule)
    threat_norm(options, None)
    facts = load_network(options.address, model_dir=options.model_dir, network=options.network)
    return Loaded(under_rule(facts, options, device), facts)


def under_rule(facts: ZooModel, options: ModelOptions, device: torch.device) -> SelectiveClassifier:
    """A loaded network under the rule that the options ask for."""
    own = facts.rule if options.rule is None else None
    if own is not None and not own.can_reject:
        # A network saved without rejection is made for no rule in particular.
        own = None if options.radius or options.steps or options.step_size else own
    kind = find_rule(options.rule or DEFAULT_RULE) if own is None else type(own)
    names = ("radius", "steps", "step_size", "threshold")
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    known = [field.name for field in fields(kind)]
    for name in settings:
        if name not in known:
            raise typer.BadParameter(
                f"rule {kind.name} takes no {name}; it takes {', '.join(known)}"
            )
    if "norm" in known and (options.norm or own is None):
        settings["norm"] = threat_norm(options, facts)
    settings |= rule_options(kind, options.settings or ())
    return wrap(facts, kind.name if own is None else None, device=device, **settings)


def rule_options(rule: type[RejectionRule], pairs: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` pairs as settings of a rule, by the rule's own types."""
    hints = typing.get_type_hints(rule) if pairs else {}
    known = [field.name for field in fields(rule)]
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise typer.BadParameter(f"--set: expected NAME=VALUE, got {pair!r}")
        if name not in known:
            raise typer.BadParameter(
                f"rule {rule.name!r} has no setting {name!r}.{near(name, known)} Its settings: "
                f"{', '.join(known)}"
            )
        settings[name] = _read(name, text.strip(), hints[name])
    return settings


def _read(name: str, text: str, kind: Any) -> Any:
    """A value of a type, from text."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

    choices = typing.get_args(kind)
    value: Any = {str(choice): choice for choice in choices}.get(text, text)
    if type(None) in choices and text.lower() == "none":
        value = None
    elif float in (kind, *choices):
        with suppress(typer.BadParameter):
            value = -fraction(text[1:]) if text[:1] == "-" else fraction(text)
    try:
        finite = TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))
        return finite.validate_python(value)
    except PydanticUserError as error:
        raise typer.BadParameter(f"{name} cannot be set from the command line") from error
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise typer.BadParameter(f"{name}: {problem}, got {text!r}") from error


def threat_norm(options: ModelOptions, facts: ZooModel | None) -> str:
    """The norm asked for, in any case, or else the one that the model was made for."""
    try:
        return threat(options.norm or (facts and facts.norm) or "Linf").name
    except LookupError as error:
        raise typer.BadParameter(f"--norm: {error}") from error


def threat_eps(eps: float | None, facts: ZooModel) -> float:
    """The budget asked for, or else the one that the model was made for."""
    found = facts.eps if eps is None else eps
    if found is None:
        raise typer.BadParameter(
            f"{facts.address} does not say for which budget it was made; pass --eps, e.g. 8/255"
        )
    return found


def load_images(options: DataOptions, facts: ZooModel, part: str | None = None) -> ImageData:
    """Load the images that are asked for, and see that they fit the model.

    By default those of the part for robustness, or of all test images those with given numbers.
    """
    name = options.dataset or facts.dataset
    if name is None:
        raise typer.BadParameter(
            f"{facts.address} does not say which images it is for; pass --dataset with one of "
            f"{', '.join(DATASETS)}, a folder of images, a .npz file or module:function"
        )
    data = load_data(
        name,
        part or ("test" if options.chosen else "robust"),
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


def calibrated(model: SelectiveClassifier, rate: float, data: ImageData) -> Calibration:
    """Set the rule on some images so that it rejects that share of right answers."""
    device = network_device(model.base)
    images, labels = data.images.to(device), data.labels.to(device)
    with busy("calibrating"):
        preflight(model, images)
        return calibrate(model, images, labels, rate)


def validation_images(
    options: DataOptions, facts: ZooModel, name: str | None, tested: ImageData
) -> ImageData:
    """Images to set a rule on, by default the validation part of the data set that is tested on."""
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
