"""Models of RobustBench.

Its release 1.1.1 imports `autoattack`, while the package it depends on is called `pyautoattack`,
and `pkg_resources`, which setuptools gave up. We lend it the first name while it is imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from cpr_wrap._checks import import_extra
from cpr_wrap.zoo.checkpoint import one_line, tensors_only
from cpr_wrap.zoo.model import ZOOS, Options, ZooModel, unknown

_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
_EPS = {"Linf": 8 / 255, "L2": 0.5}
_EPS_IMAGENET = {"Linf": 4 / 255, "L2": 3.0}


class Entry(NamedTuple):
    """A line of RobustBench's leaderboards."""

    dataset: str
    threat: str
    name: str

    @property
    def address(self) -> str:
        """Its full address."""
        return f"robustbench:{'/'.join(self)}"


@ZOOS.register("robustbench")
def load_robustbench(name: str, options: Options) -> ZooModel:
    """Load e.g. `robustbench:Rice2020Overfitting`, short for `cifar10/Linf/Rice2020Overfitting`.

    `model_dir` is RobustBench's own: weights are at `<model_dir>/<dataset>/<threat>/<name>.pt`.
    """
    robustbench = import_robustbench()
    entry, facts = find_entry(name)
    folder = options.model_dir or Path("models")
    files = _files(entry, facts, folder)
    if not (options.pretrained or options.download or files):
        raise ValueError(
            f"{entry.address} has torchvision's own weights, which are fetched when it is built; "
            "pass download=True to allow it"
        )
    try:
        with _no_leftovers(files), tensors_only(), _quiet():
            if options.pretrained:
                network = robustbench.load_model(
                    model_name=entry.name,
                    model_dir=folder,
                    dataset=entry.dataset,
                    threat_model=entry.threat,
                )
            else:
                network = _untrained(entry, facts)
    except Exception as error:  # whatever RobustBench, gdown or the connection raise
        raise RuntimeError(_what_to_do(entry.address, files, one_line(error))) from error
    return _describe(network.eval(), entry)


def import_robustbench() -> ModuleType:
    """Import RobustBench, which a plain installation cannot do."""
    if module := sys.modules.get("robustbench"):
        return module
    try:
        with _borrowed_name(), _quiet():
            return import_extra("robustbench", "robustbench")
    except ModuleNotFoundError as error:
        if error.name != "pkg_resources":
            raise
        raise ModuleNotFoundError(
            "RobustBench imports pkg_resources, which is gone from setuptools 82 on; "
            "pip install 'setuptools<82'",
            name="pkg_resources",
        ) from error


@contextlib.contextmanager
def _borrowed_name() -> Iterator[None]:
    """Inside, `autoattack` is `pyautoattack`, unless there is a real one.

    Only inside: the two have different interfaces, and others must not take one for the other.
    """
    if "autoattack" in sys.modules or importlib.util.find_spec("autoattack"):
        yield
        return
    lent = {name: import_extra(f"py{name}") for name in ("autoattack", "autoattack.state")}
    sys.modules.update(lent)
    try:
        yield
    finally:
        for name in lent:
            sys.modules.pop(name, None)


def robustbench_names() -> list[str]:
    """The addresses of all models on RobustBench's leaderboards."""
    import_robustbench()
    models = import_extra("robustbench.model_zoo").model_dicts
    return [
        Entry(dataset.value, threat.value, name).address
        for dataset, threats in models.items()
        for threat, listed in threats.items()
        for name in listed
    ]


def find_entry(name: str) -> tuple[Entry, Mapping[str, Any]]:
    """Find a model by `name` or `dataset/threat/name`, with RobustBench's facts about it."""
    parts = name.split("/")
    if len(parts) not in (1, 3):
        raise ValueError(
            "expected robustbench:NAME or robustbench:DATASET/THREAT/NAME, e.g. "
            f"robustbench:cifar10/Linf/Rice2020Overfitting, got robustbench:{name}"
        )
    entry = Entry(*(parts if len(parts) == 3 else ("cifar10", "Linf", name)))
    found: Mapping[Any, Any] = import_extra("robustbench.model_zoo").model_dicts
    board = f"{entry.dataset}/{entry.threat}"
    kinds = ("data set", f"threat model for {entry.dataset}", f"{board} model")
    for kind, part in zip(kinds, entry, strict=True):
        known = {getattr(key, "value", key): below for key, below in found.items()}
        if part not in known:
            raise unknown(f"RobustBench {kind}", part, known)
        found = known[part]
    return entry, found


def _timm_name(entry: Entry) -> str:
    """The name under which RobustBench enters some of its models in timm's registry."""
    return "_".join((entry.name.replace("-", "_"), entry.dataset, entry.threat)).lower()


def _untrained(entry: Entry, facts: Mapping[str, Any]) -> nn.Module:
    timm, name = import_extra("timm"), _timm_name(entry)
    classes, listed = _CLASSES[entry.dataset], timm.is_model(name)
    network: nn.Module
    network = timm.create_model(name, num_classes=classes) if listed else facts["model"]()
    return network


def _describe(network: nn.Module, entry: Entry) -> ZooModel:
    transform, shape = None, (3, 32, 32)
    if entry.dataset == "imagenet":
        from PIL import Image

        data = import_extra("robustbench.data")
        enums = import_extra("robustbench.model_zoo.enums")
        transform = data.get_preprocessing(
            enums.BenchmarkDataset(entry.dataset), enums.ThreatModel(entry.threat), entry.name, None
        )
        shape = tuple(transform(Image.new("RGB", (512, 512))).shape)
    budgets = _EPS_IMAGENET if entry.dataset == "imagenet" else _EPS
    return ZooModel(
        network=network,
        address=entry.address,
        input_shape=shape,
        num_classes=_CLASSES[entry.dataset],
        transform=transform,
        dataset=entry.dataset,
        norm=entry.threat if entry.threat in budgets else None,
        eps=budgets.get(entry.threat),
        source={"base": entry.address},
    )


def _files(entry: Entry, facts: Mapping[str, Any], folder: Path) -> dict[Path, str]:
    """The files RobustBench reads a model from, and where it would get each."""
    timm, name = import_extra("timm"), _timm_name(entry)
    if timm.is_model(name):
        url = str(timm.get_pretrained_cfg(name).url)
        return {Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]: url}
    if not facts["gdrive_id"]:  # torchvision's own weights, which it fetches when it builds them
        return {}
    # The leaderboards of the two kinds of corruptions share a folder.
    path = folder / entry.dataset / entry.threat.replace("_3d", "") / f"{entry.name}.pt"
    drive = "https://drive.google.com/uc?id="
    if isinstance(facts["gdrive_id"], list):  # an ensemble
        return {Path(f"{path}_m{i}.pt"): drive + id_ for i, id_ in enumerate(facts["gdrive_id"])}
    return {path: f"{drive}{facts['gdrive_id']}"}


def _what_to_do(address: str, files: Mapping[Path, str], reason: str) -> str:
    if not files:
        hub = Path(torch.hub.get_dir()) / "checkpoints"
        return (
            f"could not download {address} ({reason}): it has torchvision's own weights; get them "
            f"from https://download.pytorch.org/models/ and put them into {hub}"
        )
    missing = [(url, path.absolute()) for path, url in files.items() if not path.is_file()]
    if missing:
        todo = "; ".join(f"get {url} and put it at {path}" for url, path in missing)
        return f"could not download {address} ({reason}): {todo}"
    listed = " and ".join(str(path.absolute()) for path in files)
    return (
        f"RobustBench cannot load {address} from {listed}, which is damaged or of another model "
        f"({reason}); remove it to download it again"
    )


@contextlib.contextmanager
def _no_leftovers(files: Iterable[Path]) -> Iterator[None]:
    """Remove what gdown leaves of a download that breaks off."""
    try:
        yield
    except BaseException:
        for path in files:
            for part in path.parent.glob(f"{path.name}?*tmp"):
                part.unlink()
        raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep its prints off stdout, which is for results, and hide its and others' deprecations."""
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
