"""Finished work on disk: append-only, found again by everything that decides the numbers.

A store holds one folder for each way to evaluate, and in it one file for each unit of work: a block
of images and a stage. A unit holds only what its stage found, so replaying the units of a block in
order gives the block's state back, to the bit. Beside the units, a `.partial` file holds the one
that is under way, written every so often, so that a kill costs seconds and not a stage.

A folder's name is a hash of all settings, weights and source texts. What no hash can see, e.g. a
hook or a global that a network reads, shows in its answers to fixed probe images: they are kept in
the folder's manifest, and another model with the same hash gets a folder of its own.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap._files import digest, read_sealed, write_atomically, write_sealed
from cpr_wrap._source import plain_repr, source_text
from cpr_wrap.engine.block import Block, Found
from cpr_wrap.engine.precision import is_out_of_memory
from cpr_wrap.engine.stages import State
from cpr_wrap.meter import Passes
from cpr_wrap.metrics.evidence import Origin
from cpr_wrap.objective import Goal
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.solver import Columns

_UNIT = "cpr-wrap unit, layout 2"
_BLOCK_TENSORS = ("clean_labels", "base_labels", "order")
_PROBES = 8
# Of the largest answer: other threads round differently, and T magnifies that.
_NEAR = {"outputs": 1e-4, "score": 1e-3, "gradient": 1e-3}


def weights_digest(network: nn.Module) -> str:
    """A digest of all parameters and buffers by name."""
    return digest(*chain.from_iterable(network.state_dict().items()))


def model_digest(model: SelectiveClassifier) -> str:
    """A digest of weights, structure and the rule's code: what probes need not tell."""
    parts: list[str | Tensor] = [weights_digest(model), plain_repr(model.base)]
    for name, buffer in model.named_buffers():
        parts.extend((name, buffer))  # those outside the state_dict too
    return digest(*parts, source_text(type(model.rule)))


Answers = dict[str, list[float]]
"""What a model said about the probes: its outputs, scores and gradients."""


def probe(model: SelectiveClassifier, x: Tensor) -> Answers:
    """The model's answers to fixed noise images of the shape of `x` `(1, ...)`.

    Gradients belong to them: opened ones let attacks find what they could not find before.
    """
    keys = noise.keys(0, torch.arange(_PROBES, device=x.device))
    images = noise.uniform(keys, x[0].numel()).to(x.dtype).view(_PROBES, *x.shape[1:])
    # From nearly flat to all of the range: some networks say nothing about plain noise.
    contrast = torch.linspace(0.1, 1, _PROBES, dtype=x.dtype, device=x.device)
    images = 0.5 + (images - 0.5) * contrast.view(-1, *(1,) * (x.dim() - 1))
    answers: Answers = {name: [] for name in _NEAR}
    for image in images.split(1):
        said = model.judge(image)
        slope = _slope(model, image)
        for name, value in (
            ("outputs", said.logits),
            ("score", said.score),
            ("gradient", torch.stack([slope.abs().sum(), (slope * image).sum()])),
        ):
            answers[name] += [float(f"{v:.6g}") for v in value.double().flatten().tolist()]
    return answers


def _slope(model: SelectiveClassifier, x: Tensor) -> Tensor:
    """The gradient at `x` of a sum of all outputs, each with a weight of its own; 0 for none."""

    def weighted(z: Tensor) -> Tensor:
        outputs = model.outputs(z)
        weights = torch.arange(1, outputs.shape[1] + 1, dtype=outputs.dtype, device=x.device)
        return (outputs * weights).sum()

    slope: Tensor = torch.autograd.functional.vjp(weighted, x)[1]
    return slope.nan_to_num(0.0, 0.0, 0.0)


def same_answers(one: Answers, other: Answers) -> bool:
    """Whether two models' answers differ by no more than rounding."""
    for name, most in _NEAR.items():
        a, b = (torch.tensor(each[name], dtype=torch.float64) for each in (one, other))
        if a.shape != b.shape or bool(((a - b).abs() > most * a.abs().max().clamp_min(1e-6)).any()):
            return False
    return True


def _read(file: Path, layout: str, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """Read a sealed file; None if it is not there, or cannot be used."""
    try:
        return read_sealed(file, layout, device)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as error:
        warnings.warn(f"{error}; its work is repeated", stacklevel=3)
        return None


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What one stage did to one block.

    Its tensors are, per goal, the images, points and distances it found; also those of the block
    that a stage sets (clean labels, target order).
    """

    stage: str
    passes: Passes
    seconds: float
    tensors: Mapping[str, Tensor]
    origins: Mapping[str, list[dict[str, Any]]]  # per goal, how the points were found
    note: str = ""  # anything worth telling, e.g. a smaller batch after running out of memory
    batch_size: int = 0  # the block's from here on, where memory ran out; 0 elsewhere

    def save(self, file: Path) -> None:
        """Write the unit in place of its partial file; it is there whole or not at all."""
        write_sealed(file, _UNIT, {**vars(self), "passes": asdict(self.passes)})
        file.with_suffix(".partial").unlink(missing_ok=True)

    @classmethod
    def load(cls, file: Path) -> Unit | None:
        """Read a unit back, or None if it was not finished or is damaged."""
        content = _read(file, _UNIT)
        if content is None:
            return None
        return cls(**{**content, "passes": Passes(**content["passes"])})

    def replay(self, block: Block) -> None:
        """Bring a block to the state that the stage left it in."""
        block.batch_size = self.batch_size or block.batch_size
        for name, held in block.known().items():
            image = self.tensors.get(f"{name}.image")
            if image is None:
                continue
            for column, values in held.columns().items():
                values[image.to(values.device)] = self.tensors[f"{name}.{column}"].to(values.device)
            if isinstance(held, Found):
                for row, entry in zip(image.tolist(), self.origins[name], strict=True):
                    held.origin[row] = Origin(**entry)
        for name in _BLOCK_TENSORS:
            if name in self.tensors:
                setattr(block, name, self.tensors[name].to(block.x.device))

    def changed(self, goal: Goal) -> int:
        """How many images' nearest point for a goal it found."""
        return len(self.tensors.get(f"{goal.name}.image", ()))


def changes(
    block: Block, before: Mapping[str, Columns], *, first: bool
) -> tuple[dict[str, Tensor], dict[str, list[dict[str, Any]]]]:
    """Tensors and origins of a unit: what has become known since `before`.

    The first unit of a block holds clean labels and targets too.
    """
    tensors: dict[str, Tensor] = {}
    origins: dict[str, list[dict[str, Any]]] = {}
    for name, held in block.known().items():
        now, then = held.columns(), before[name].columns()
        differ = [(now[k] != then[k]).reshape(len(block), -1).any(dim=1) for k in now]
        image = torch.stack(differ).any(dim=0).nonzero().flatten()
        if len(image) == 0:
            continue
        tensors[f"{name}.image"] = image.cpu()
        tensors.update((f"{name}.{column}", values[image].cpu()) for column, values in now.items())
        if isinstance(held, Found):
            origins[name] = [_plain(held.origin[row]) for row in image.tolist()]
    if first:
        for name in _BLOCK_TENSORS:
            tensors[name] = getattr(block, name).cpu().contiguous()
    return tensors, origins


def _plain(origin: Origin | None) -> Any:
    return None if origin is None else asdict(origin)


class Store:
    """Units on disk: the folder (`path`) of one way to evaluate, and its settings (`manifest`)."""

    def __init__(
        self, folder: str | Path, settings: Mapping[str, Any], answers: Answers | None = None
    ) -> None:
        """Open or make the folder for everything that results depend on, as plain data.

        A `batch_size` may be `auto`: what it came to is kept in the manifest. A folder with other
        answers to the probe images is another model's.
        """
        key = digest(json.dumps(settings, sort_keys=True))[:16]
        for number in count():
            self.path = Path(folder) / (f"{key}-{number}" if number else key)
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.path / "manifest.json"
            if not file.exists():
                self.manifest: dict[str, Any] = {"settings": dict(settings), "answers": answers}
                return
            self.manifest = json.loads(file.read_text())
            known = self.manifest.get("answers")
            if answers is None or known is None or same_answers(known, answers):
                return
            warnings.warn(
                f"{self.path} holds the work of a model with the same settings and weights that "
                "answers differently; it is not used",
                stacklevel=2,
            )

    def fix(self, name: str, value: Any) -> Any:
        """Settle a value that was left open: the first run decides, later runs follow."""
        if name not in self.manifest:
            self.manifest[name] = value
            text = json.dumps(self.manifest, indent=2, sort_keys=True) + "\n"
            write_atomically(self.path / "manifest.json", text.encode())
        return self.manifest[name]

    def file(self, block: str, plan: str, number: int) -> Path:
        """Where a unit is kept."""
        return self.path / block[:16] / f"{plan}-{number:03d}.unit"

    def discard(self, block: str, plan: str) -> None:
        """Remove all units of a block."""
        for file in self.file(block, plan, 0).parent.glob(f"{plan}-*"):
            file.unlink(missing_ok=True)


# Count it up when a run holds other things than before.
_LAYOUT = "cpr-wrap partial unit, layout 3"
_PATIENCE = 9  # times as long as a slow write took; but at most twice as long as asked for


class Underway:
    """What a unit has cost so far and where it is, on disk too if it has a file."""

    every: ClassVar[float] = 20.0  # seconds between two writes, 0 for one after every tick

    def __init__(self, block: Block, passes: Passes, unit: Path | None = None) -> None:
        """Begin, or go on from what is kept beside the file of the unit, if it is whole.

        Block, passes and clock are set to it.
        """
        self.block, self.passes = block, passes
        self.file = None if unit is None else unit.with_suffix(".partial")
        self.state: State | None = None  # where the stage was; None at its beginning
        self.note = ""
        now = time.perf_counter()
        self._started, self._due = now, now + self.every
        content = self.file and _read(self.file, _LAYOUT, block.x.device)
        if content:
            self._go_to(content)

    @property
    def seconds(self) -> float:
        """Time spent on this unit, before a stop too."""
        return time.perf_counter() - self._started

    def after_tick(self, state: Callable[[], State]) -> None:
        """Write the file if it is time to; `state` tells where the stage is."""
        now = time.perf_counter()
        if self.file is None or now < self._due:
            return
        content = {
            "run": state(),
            "near": self.block.near.columns(),
            "found": {
                goal.name: {**found.columns(), "origin": [_plain(each) for each in found.origin]}
                for goal, found in self.block.found.items()
            },
            "batch_size": self.block.batch_size,
            "passes": asdict(self.passes),
            "seconds": self.seconds,
            "note": self.note,
        }
        try:
            write_sealed(self.file, _LAYOUT, content)
        except (OSError, RuntimeError, MemoryError) as error:
            # The unit itself needs far less room; and what fails here says nothing of its batches.
            if not (isinstance(error, OSError) or is_out_of_memory(error)):
                raise
            warnings.warn(
                f"could not write {self.file}, so a stop now would lose all work since its "
                f"last version: {error}",
                stacklevel=2,
            )
        done = time.perf_counter()
        pause = min(_PATIENCE * (done - now), 2 * self.every)
        self._due = done + max(self.every, pause)

    def _go_to(self, content: dict[str, Any]) -> None:
        self.state, self.note = content["run"], content["note"]
        self.block.batch_size = content["batch_size"]
        for goal, found in self.block.found.items():
            held = content["found"][goal.name]
            origin = [None if entry is None else Origin(**entry) for entry in held["origin"]]
            vars(found).update({**held, "origin": origin})
        vars(self.block.near).update(content["near"])
        vars(self.passes).update(content["passes"])
        self._started -= content["seconds"]
