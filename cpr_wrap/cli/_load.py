"""From options to the model and the images that they name."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from cpr_wrap.cli._run import command_line, mention
from cpr_wrap.cli.options import Common, DataOptions, ModelOptions, fraction

if TYPE_CHECKING:
    import torch

    from cpr_wrap.attacks.ensemble import Budget
    from cpr_wrap.calibration import Calibration, CalibrationRecord
    from cpr_wrap.data import ImageData
    from cpr_wrap.evaluation.sweep import Task
    from cpr_wrap.rule import RejectionRule
    from cpr_wrap.selective import SelectiveClassifier
    from cpr_wrap.zoo import ZooModel

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model, the images to evaluate it on, the threat, and how the rule was set, if it was."""

    model: SelectiveClassifier
    facts: ZooModel
    images: ImageData
    eps: float
    norm: str
    calibration: CalibrationRecord | None = None

    def calibrated(
        self, rate: float | None, validation: str | None, data: DataOptions, extras: Any = ()
    ) -> Subject:
        """Set the rule on validation images, if a rate is given; `extras` are tried before that."""
        from cpr_wrap.engine.images import source_of
        from cpr_wrap.evaluation.preflight import try_attacks

        model, record = self.model, None
        if rate is not None:
            source = source_of(self.images.images, self.images.labels, None)
            try_attacks(extras, model, source, self.eps, self.norm)
            held_out = validation_images(data, self.facts, validation, self.images)
            model, record = calibrated(model, rate, held_out)
        warn_of_open_rule(model)
        return replace(self, model=model, calibration=record)

    def task(
        self, name: str, budget: Budget, common: Common, network: str | None, extras: Any = ()
    ) -> Task:
        """Its evaluation, with what a result says of its run to be checked and made again."""
        from cpr_wrap.evaluation.sweep import Task
        from cpr_wrap.metrics import About

        about = About(
            name=name,
            model=self.facts.address,
            network=network or "",
            imports=tuple(common.imports or ()),
            dataset=self.images.name,
            part=self.images.part,
            dataset_note=self.images.note,
            command=command_line(),
            trained_eps=self.facts.trained_eps,
        )
        return Task(
            about=about,
            model=self.model,
            data=self.images,
            eps=self.eps,
            norm=self.norm,
            budget=budget,
            extras=extras,
            calibration=None if self.calibration is None else self.calibration.facts,
        )


class Loaded(NamedTuple):
    """A model, and what its source knows about it."""

    model: SelectiveClassifier
    facts: ZooModel

    def on_images(self, eps: float | None, model: ModelOptions, data: DataOptions) -> Subject:
        """Load images for it; the threat is the one asked for, or else the model's own."""
        return Subject(
            model=self.model,
            facts=self.facts,
            eps=threat_eps(eps, self.facts),
            norm=threat_norm(model, self.facts),
            images=load_images(data, self.facts),
        )


def run_name(address: str, *words: str) -> str:
    """A name for a run of the model at an address."""
    return "+".join((address.rpartition(":")[2].rstrip("/").rpartition("/")[2], *words))


def pick_device(name: str) -> torch.device:
    """The device of that name, if this machine has one."""
    import torch

    from cpr_wrap.training.distributed import choose_device

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(name, True):
        raise ValueError(f"this machine has no {name} device; use --device auto or cpu")
    # Under torchrun each process takes its own GPU.
    return choose_device(name if name in ("cpu", "mps") else None)


@contextmanager
def several_processes(device: torch.device) -> Iterator[bool]:
    """Join the processes of this command, if there are several; yields whether this one leads."""
    from cpr_wrap.engine import ranks

    joined_before = ranks.together()
    ranks.join(device)
    try:
        yield ranks.rank() == 0
    finally:
        if not joined_before:
            ranks.leave(wait=False)


def load_model(address: str, options: ModelOptions, device: torch.device) -> Loaded:
    """Load a model and put it under the rule that the options ask for."""
    from cpr_wrap.rule import find_rule
    from cpr_wrap.zoo import load_network

    # An unknown rule or norm is better found before a download than after.
    if options.rule is not None:
        find_rule(options.rule)
    threat_norm(options, None)
    facts = load_network(address, model_dir=options.model_dir, network=options.network)
    return Loaded(under_rule(facts, options, device), facts)


def under_rule(facts: ZooModel, options: ModelOptions, device: torch.device) -> SelectiveClassifier:
    """A loaded network under the rule that the options ask for."""
    from cpr_wrap.rule import DEFAULT_RULE, find_rule
    from cpr_wrap.zoo import wrap

    rule = None if options.rule is None else find_rule(options.rule).name
    own = facts.rule
    # A network saved without rejection is made for no rule in particular.
    wants_another = options.radius or options.steps or options.step_size
    if rule is None and (own is None or (not own.can_reject and wants_another)):
        rule = DEFAULT_RULE
    settings = _rule_settings(rule or own.name, options, facts)  # type: ignore[union-attr]
    return wrap(facts, rule, device=device, **settings)


def _rule_settings(rule: str, options: ModelOptions, facts: ZooModel) -> dict[str, Any]:
    from cpr_wrap.selective import RULES

    kind = RULES[rule]
    names = ("radius", "steps", "step_size", "threshold")
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    known = [field.name for field in fields(kind)]
    for name in settings:
        if name not in known:
            raise typer.BadParameter(f"rule {rule} takes no {name}; it takes {', '.join(known)}")
    own = options.rule is None and facts.rule is not None and facts.rule.name == rule
    if "norm" in known and (options.norm or not own):
        settings["norm"] = threat_norm(options, facts)
    return settings | rule_options(kind, options.settings or ())


def rule_options(rule: type[RejectionRule], pairs: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` pairs as settings of a rule, by the rule's own types."""
    from cpr_wrap._registry import near

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
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if type(None) in choices and text.lower() == "none":
            return None
        return _read(name, text, next(c for c in choices if c is not type(None)))
    if origin is typing.Literal:
        known = {str(choice): choice for choice in choices}
        if text not in known:
            raise typer.BadParameter(f"{name}: expected one of {', '.join(known)}, got {text!r}")
        return known[text]
    readers: dict[Any, tuple[str, Any]] = {
        bool: ("yes or no", lambda text: _WORDS[text.lower()]),
        int: ("a whole number", int),
        float: (
            "a number",
            lambda text: -fraction(text[1:]) if text[:1] == "-" else fraction(text),
        ),
        str: ("text", str),
    }
    if kind not in readers:
        raise typer.BadParameter(f"{name} cannot be set from the command line")
    expected, read = readers[kind]
    try:
        return read(text)
    except (KeyError, ValueError, typer.BadParameter) as error:
        raise typer.BadParameter(f"{name}: expected {expected}, got {text!r}") from error


def threat_norm(options: ModelOptions, facts: ZooModel | None) -> str:
    """The norm asked for, in any case, or else the one that the model was made for."""
    from cpr_wrap.geometry import threat

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
    from cpr_wrap.data import DATASETS, load_data

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
    from cpr_wrap.calibration import calibrate
    from cpr_wrap.engine.progress import busy
    from cpr_wrap.evaluation.preflight import preflight
    from cpr_wrap.selective import network_device

    device = network_device(model.base)
    images, labels = data.images.to(device), data.labels.to(device)
    with busy("calibrating"):
        preflight(model, images)
        return calibrate(model, images, labels, rate)


def validation_images(
    options: DataOptions, facts: ZooModel, name: str | None, tested: ImageData
) -> ImageData:
    """Images to set a rule on, by default the validation part of the data set that is tested on."""
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
