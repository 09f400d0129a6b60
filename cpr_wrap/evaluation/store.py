"""Finished work on disk: append-only, found again by a hash of everything it depends on.

A store holds one folder for each way to evaluate (a hash of all settings and of the weights), and
in it one file for each unit of work: a block of images and a stage. A unit holds only what its
stage found, so replaying the units of a block in order gives the block's state back, to the bit.
Beside the units, a `.partial` file holds the one that is under way; see `partial.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from cpr_wrap._code import code_text
from cpr_wrap.evaluation.block import Block, Found, Origin
from cpr_wrap.meter import Passes
from cpr_wrap.objective import Goal

_PLAIN = (bool, int, float, str, tuple, list)


def digest(*parts: bytes | str | Tensor) -> str:
    """A SHA-256 of texts and tensors (type, shape and bytes), as 64 hexadecimal digits."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            data = part.detach().cpu().contiguous()
            sha.update(f"{data.dtype}{tuple(data.shape)}".encode())
            sha.update(data.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            sha.update(part.encode() if isinstance(part, str) else part)
    return sha.hexdigest()


def weights_digest(network: nn.Module) -> str:
    """A digest of all parameters and buffers by name."""
    parts: list[str | Tensor] = []
    for name, tensor in network.state_dict().items():
        parts.extend((name, tensor))
    return digest(*parts)


def network_digest(network: nn.Module) -> str:
    """A digest of what a network computes: weights, structure, settings and code of its modules."""
    parts: list[str | Tensor] = [weights_digest(network), repr(network)]
    for name, buffer in network.named_buffers():
        parts.extend((name, buffer))  # those outside the state_dict too
    for name, module in network.named_modules():
        plain = {k: v for k, v in vars(module).items() if isinstance(v, _PLAIN)}
        parts.append(f"{name} {sorted(plain.items())} {code_text(type(module).forward)}")
    return digest(*parts)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What one stage did to one block.

    Attributes:
        stage: Name of the stage.
        passes: What it cost.
        seconds: How long it took.
        tensors: What it found: per goal the images, points and distances; also the block's
            tensors that a stage sets (clean labels, target order).
        origins: Per goal, where the points come from, as plain data.
        note: Anything worth telling, e.g. a smaller batch after running out of memory.
        batch_size: The block's batch size from here on, where memory ran out; 0 elsewhere.
    """

    stage: str
    passes: Passes
    seconds: float
    tensors: Mapping[str, Tensor]
    origins: Mapping[str, list[dict[str, Any]]]
    note: str = ""
    batch_size: int = 0

    def replay(self, block: Block) -> None:
        """Bring a block to the state that the stage left it in."""
        block.batch_size = self.batch_size or block.batch_size
        for goal, found in block.found.items():
            image = self.tensors.get(f"{goal.name}.image")
            if image is None:
                continue
            image = image.to(found.point.device)
            found.point[image] = self.tensors[f"{goal.name}.point"].to(found.point.device)
            found.distance[image] = self.tensors[f"{goal.name}.distance"].to(found.point.device)
            for row, entry in zip(image.tolist(), self.origins[goal.name], strict=True):
                found.origin[row] = Origin(**entry["origin"])
                found.target[row] = entry["target"]
        for name in ("clean_labels", "base_labels", "order"):
            if name in self.tensors:
                setattr(block, name, self.tensors[name].to(block.x.device))


@dataclass
class Recorder:
    """Compares a block before and after a stage."""

    block: Block
    before: dict[Goal, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = {goal: found.distance.clone() for goal, found in self.block.found.items()}

    def unit(
        self, stage: str, passes: Passes, seconds: float, *, extras: bool = False, note: str = ""
    ) -> Unit:
        """What has changed since, as a unit.

        Args:
            stage: Name of the stage.
            passes: What it cost.
            seconds: How long it took.
            extras: Whether to store the block's clean labels and target order too.
            note: See `Unit`.
        """
        tensors: dict[str, Tensor] = {}
        origins: dict[str, list[dict[str, Any]]] = {}
        for goal, found in self.block.found.items():
            image = (found.distance != self.before[goal]).nonzero().flatten()
            if len(image) == 0:
                continue
            tensors[f"{goal.name}.image"] = image.cpu()
            tensors[f"{goal.name}.point"] = found.point[image].cpu()
            tensors[f"{goal.name}.distance"] = found.distance[image].cpu()
            origins[goal.name] = [_origin(found, row) for row in image.tolist()]
        if extras:
            for name in ("clean_labels", "base_labels", "order"):
                tensors[name] = getattr(self.block, name).cpu().contiguous()
        return Unit(
            stage=stage,
            passes=passes,
            seconds=seconds,
            tensors=tensors,
            origins=origins,
            note=note,
            batch_size=self.block.batch_size if note else 0,
        )


def _origin(found: Found, row: int) -> dict[str, Any]:
    origin = found.origin[row]
    assert origin is not None
    return {"origin": asdict(origin), "target": found.target[row]}


class Store:
    """Units on disk.

    Attributes:
        path: The folder of this way to evaluate.
        manifest: All its settings, as found or as written.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]) -> None:
        """Open or make the folder for some settings.

        Args:
            folder: Where stores live; different settings live side by side in it.
            settings: Everything that results depend on, as plain data. `batch_size` and
                `block_size` may be `auto`: what they came to is kept in the manifest.
        """
        key = digest(json.dumps(settings, sort_keys=True))[:16]
        self.path = Path(folder) / key
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "manifest.json"
        if file.exists():
            self.manifest: dict[str, Any] = json.loads(file.read_text())
        else:
            self.manifest = {"settings": dict(settings)}

    def fix(self, name: str, value: Any) -> Any:
        """Settle a value that was left open: the first run decides, later runs follow."""
        if name not in self.manifest:
            self.manifest[name] = value
            text = json.dumps(self.manifest, indent=2, sort_keys=True) + "\n"
            write_atomically(self.path / "manifest.json", text.encode())
        return self.manifest[name]

    def _file(self, block: str, plan: str, number: int) -> Path:
        return self.path / block[:16] / f"{plan}-{number:03d}.safetensors"

    def partial(self, block: str, plan: str, number: int) -> Path:
        """Where a unit is kept while it is under way."""
        return self._file(block, plan, number).with_suffix(".partial")

    def save(self, block: str, plan: str, number: int, unit: Unit) -> None:
        """Write a unit in place of its partial file; it is there whole or not at all."""
        head = {
            "stage": unit.stage,
            "forwards": unit.passes.forwards,
            "backwards": unit.passes.backwards,
            "seconds": unit.seconds,
            "origins": unit.origins,
            "note": unit.note,
            "batch_size": unit.batch_size,
        }
        tensors = {name: tensor.contiguous() for name, tensor in unit.tensors.items()}
        data = save(tensors, metadata={"unit": json.dumps(head)})
        write_atomically(self._file(block, plan, number), data)
        self.partial(block, plan, number).unlink(missing_ok=True)

    def load(self, block: str, plan: str, number: int) -> Unit | None:
        """Read a unit back, or None if it was not finished."""
        file = self._file(block, plan, number)
        if not file.exists():
            return None
        with safe_open(file, framework="pt") as data:
            head = json.loads(data.metadata()["unit"])
            tensors = {name: data.get_tensor(name) for name in data.keys()}  # noqa: SIM118
        return Unit(
            stage=head["stage"],
            passes=Passes(head["forwards"], head["backwards"]),
            seconds=head["seconds"],
            tensors=tensors,
            origins=head["origins"],
            note=head["note"],
            batch_size=head.get("batch_size", 0),
        )


def write_atomically(file: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all, in its place if there was one before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
