"""`cpr-wrap predict`: a label for each image file, or REJECT and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cpr_wrap.cli import _load, _show, options
from cpr_wrap.cli.options import Common, ModelOptions, argument, option

if TYPE_CHECKING:
    from torch import Tensor

    from cpr_wrap.selective import SelectiveClassifier
    from cpr_wrap.zoo import ZooModel


def predict(
    address: str = options.address(),
    path: Path = argument("An image file, or a folder of them."),
    *,
    batch_size: int = option("Batch size.", default=64, min=1),
    class_names: Path | None = option("A text file with the names of the classes, one per line."),
    model: ModelOptions,
    common: Common,
) -> None:
    """Classify image files, or reject them and say why.

    Images are resized to the model's size, with its own resize and crop if it has one. For a
    rejection by cpr, the reason names the class that is predicted at T(x), and its margin there.

    Example: cpr-wrap predict bundled:mnist-compact-at digits/ --radius 0.15
    """
    import torch

    files = pictures_at(path)
    names = None if class_names is None else class_names.read_text().splitlines()
    device = _load.pick_device(common.device)
    selective, facts = _load.load_model(address, model, device)
    _load.warn_of_open_rule(selective)
    rows = []
    for first in range(0, len(files), batch_size):
        batch = files[first : first + batch_size]
        images = torch.stack([read_picture(file, facts) for file in batch])
        for file, answer in zip(batch, explain(selective, images.to(device), names), strict=True):
            rows.append({"file": file, **asdict(answer)})
            if names is not None:
                rows[-1]["name"] = None if answer.label < 0 else names[answer.label]
            if not common.as_json:
                typer.echo(f"{file}\t{answer.sentence(names)}")
    if common.as_json:
        _show.print_json(rows)


def pictures_at(path: Path) -> list[Path]:
    """The file itself, or the image files in a folder and below it, in order of their names."""
    from cpr_wrap.data.folder import ENDINGS, find_pictures

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
    from cpr_wrap.data.folder import as_pixels, open_picture

    picture = open_picture(file, facts.channels or 3)
    if facts.transform is not None:
        return facts.transform(picture)
    if facts.input_shape is not None:
        _, height, width = facts.input_shape
        if picture.size != (width, height):
            picture = picture.resize((width, height))
    return as_pixels(picture)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model says about one image: the class, -1 where rejected, and the rule's reason."""

    label: int
    predicted: int
    probability: float
    rule: str
    score: float
    threshold: float
    why: str

    def sentence(self, names: Sequence[str] | None = None) -> str:
        """The answer in words, with the names of the classes."""
        name = str(self.predicted) if names is None else names[self.predicted]
        if self.label >= 0:
            return f"{name}\tprobability {self.probability:.3f}"
        return f"REJECT\twould be {name} (probability {self.probability:.3f}), but {self.why}"


def explain(
    model: SelectiveClassifier, x: Tensor, names: Sequence[str] | None = None
) -> list[Answer]:
    """Ask a model about images `(N, ...)` in [0, 1], and the rule for its reasons."""
    selection, rule = model(x), model.rule
    columns = {
        "label": selection.labels.tolist(),
        "predicted": selection.predicted.tolist(),
        "probability": selection.logits.softmax(dim=1).amax(dim=1).tolist(),
        "score": selection.score.tolist(),
        "why": rule.explain(model.look(x), str if names is None else names.__getitem__),
    }
    rows = zip(*columns.values(), strict=True)
    common: dict[str, Any] = {"rule": rule.name, "threshold": rule.threshold}
    return [Answer(**dict(zip(columns, row, strict=True)), **common) for row in rows]
