"""`cpr-wrap predict`: a label for each image file, or REJECT and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor

from cpr_wrap.cli import _load
from cpr_wrap.cli._run import print_json
from cpr_wrap.cli.commands import Predict
from cpr_wrap.data.folder import ENDINGS, as_pixels, find_pictures, open_picture
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.zoo import ZooModel


def predict(options: Predict) -> None:
    """Classify image files in batches."""
    files, size = pictures_at(options.path), options.batch_size
    names = None if options.class_names is None else options.class_names.read_text().splitlines()
    device = _load.pick_device(options.device)
    selective, facts = _load.load_model(options, device)
    _load.warn_of_open_rule(selective)
    rows = []
    for first in range(0, len(files), size):
        batch = files[first : first + size]
        images = torch.stack([read_picture(file, facts) for file in batch])
        for file, row in zip(batch, explain(selective, images.to(device), names), strict=True):
            rows.append({"file": file, **row})
            if not options.as_json:
                typer.echo(f"{file}\t{sentence(row, names)}")
    if options.as_json:
        print_json(rows)


def pictures_at(path: Path) -> list[Path]:
    """The file itself, or the image files in a folder and below it, in order of their names."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise ValueError(f"{path}: expected an image file or a folder of them, got nothing there")
    files = find_pictures(path)
    if not files:
        raise ValueError(f"{path}: expected image files in it ({', '.join(ENDINGS)}), got none")
    return files


def read_picture(file: Path, facts: ZooModel) -> Tensor:
    """Pixels `(C, H, W)` of an image, in the model's channels and size if these are known."""
    picture = open_picture(file, facts.channels or 3)
    if facts.transform is not None:
        return facts.transform(picture)
    if facts.input_shape is not None:
        _, height, width = facts.input_shape
        if picture.size != (width, height):
            picture = picture.resize((width, height))
    return as_pixels(picture)


def explain(
    model: SelectiveClassifier, x: Tensor, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Ask a model about images `(N, ...)` in [0, 1], and the rule for its reasons.

    A row has the class as its label, -1 where rejected, and the class's name if there are names.
    """
    selection, rule = model(x), model.rule
    columns = {
        "label": selection.labels.tolist(),
        "predicted": selection.predicted.tolist(),
        "probability": selection.logits.softmax(dim=1).amax(dim=1).tolist(),
        "rule": [rule.name] * len(x),
        "score": selection.score.tolist(),
        "threshold": [rule.threshold] * len(x),
        "why": rule.explain(model.look(x), str if names is None else names.__getitem__),
    }
    if names is not None:
        columns["name"] = [None if k < 0 else names[k] for k in columns["label"]]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def sentence(row: dict[str, Any], names: Sequence[str] | None = None) -> str:
    """An answer in words, with the names of the classes."""
    name = str(row["predicted"]) if names is None else names[row["predicted"]]
    if row["label"] >= 0:
        return f"{name}\tprobability {row['probability']:.3f}"
    return f"REJECT\twould be {name} (probability {row['probability']:.3f}), but {row['why']}"
