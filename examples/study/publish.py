"""Copies results for publication: per-image records and settings, without images and origins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from study.figure import draw_curves
from study.options import STAGES


def publish(out: Path, target: Path) -> list[Path]:
    """Copy all result folders of a run, in place of those published before.

    Folders that this run does not have stay as they are: a stage may have been run elsewhere.

    Args:
        out: The study's folder.
        target: Where published results live.

    Returns:
        The folders written.
    """
    written = []
    for stage in STAGES:
        for result in sorted((out / stage).glob("*/result.json")):
            folder = target / stage / result.parent.name
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
            shutil.copy(result, folder)
            _copy_records(result.parent / "per_image.jsonl", folder / "per_image.jsonl")
            written.append(folder)
    draw_curves(target)
    return written


def _copy_records(source: Path, target: Path) -> None:
    """Leave out the full origin of every point: the attack's name stays, and is what is shown."""
    with source.open() as lines, target.open("w") as out:
        for line in lines:
            record = json.loads(line)
            record.pop("provenance", None)
            out.write(json.dumps(record, allow_nan=False) + "\n")
