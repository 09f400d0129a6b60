"""A unit under way: written down every so often, so that a kill costs seconds and not a stage."""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from cpr_wrap.engine.block import Block, Found
from cpr_wrap.engine.memory import is_out_of_memory
from cpr_wrap.engine.stages import StageRun, State
from cpr_wrap.engine.store import read_tensors, write_tensors
from cpr_wrap.meter import Passes
from cpr_wrap.metrics.evidence import Origin

# Count it up when a run holds other things than before.
_LAYOUT = "cpr-wrap partial unit, layout 3"
_PATIENCE = 9  # times as long as a slow write took; but at most twice as long as asked for


class Underway:
    """What a unit has cost so far and where it is, on disk too if it has a file."""

    every: ClassVar[float] = 20.0  # seconds between two writes, 0 for one after every tick

    def __init__(self, block: Block, passes: Passes, file: Path | None = None) -> None:
        """Begin, or go on from the file if it is whole: block, passes and clock are set to it."""
        self.block, self.passes, self.file = block, passes, file
        self.state: State | None = None  # where the stage was; None at its beginning
        self.note = ""
        now = time.perf_counter()
        self._started, self._due = now, now + self.every
        content = None if file is None else read_tensors(file, _LAYOUT, block.x.device)
        if content is not None:
            self._go_to(content)

    @property
    def seconds(self) -> float:
        """Time spent on this unit, before a stop too."""
        return time.perf_counter() - self._started

    def after_tick(self, run: StageRun) -> None:
        """Write the file if it is time to."""
        now = time.perf_counter()
        if self.file is None or now < self._due:
            return
        content = {
            "run": run.state(),
            "near": vars(self.block.near),
            "found": {goal.name: _plain(found) for goal, found in self.block.found.items()},
            "batch_size": self.block.batch_size,
            "passes": asdict(self.passes),
            "seconds": self.seconds,
            "note": self.note,
        }
        try:
            write_tensors(self.file, _LAYOUT, content)
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
            _restore(found, content["found"][goal.name])
        for name, held in content["near"].items():
            setattr(self.block.near, name, held)
        for kind, count in content["passes"].items():
            setattr(self.passes, kind, count)
        self._started -= content["seconds"]


def _plain(found: Found) -> dict[str, Any]:
    origin = [None if origin is None else asdict(origin) for origin in found.origin]
    return {**vars(found), "origin": origin}


def _restore(found: Found, plain: dict[str, Any]) -> None:
    found.point, found.distance = plain["point"], plain["distance"]
    found.origin = [None if entry is None else Origin(**entry) for entry in plain["origin"]]
