"""A few images with what was found for them, kept with a run so that no model is needed later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cpr_wrap._files import write_atomically, write_tensors
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.metrics.records import REJECTED, Records
from cpr_wrap.selective import SelectiveClassifier, network_device

Kind = Literal["mistake", "rejection"]

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """Facts about one image of a gallery."""

    index: int  #: Its number in the data set.
    label: int  #: True class.
    clean_label: int  #: Answer to the clean image, -1 where rejected.
    kind: Kind  #: `mistake` (accepted and wrong) or `rejection`.
    attack: str  #: What found the point.
    distance: float  #: Its distance from the clean image.
    #: Class that the network predicts at the point; None without a model.
    predicted: int | None = None
    moved: int | None = None  #: Class that it predicts at T(point); None without a T or a model.
    score: float | None = None  #: The rule's score at the point; None without a model.
    #: Whether the model confirmed the recorded verdict; None without a model.
    holds: bool | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """Exhibits and their pictures."""

    exhibits: tuple[Exhibit, ...]  #: One per image.
    clean: Tensor  #: Clean images `(M, C, H, W)`.
    perturbed: Tensor  #: The points found `(M, C, H, W)`.
    #: T of these points `(M, C, H, W)`; None without a T or a model.
    transformed: Tensor | None = None

    def __post_init__(self) -> None:
        for name, pictures in self.pictures.items():
            if pictures.dim() != 4 or pictures.shape[1] not in (1, 3):
                raise ValueError(
                    f"{name}: expected images (M, C, H, W) with 1 or 3 channels, "
                    f"got shape {tuple(pictures.shape)}"
                )
            if len(pictures) != len(self):
                raise ValueError(
                    f"{name}: expected {len(self)} images, one per exhibit, got {len(pictures)}"
                )

    @property
    def pictures(self) -> dict[str, Tensor]:
        """All pictures by their names."""
        named = {"clean": self.clean, "perturbed": self.perturbed, "transformed": self.transformed}
        return {name: pictures for name, pictures in named.items() if pictures is not None}

    def __len__(self) -> int:
        return len(self.exhibits)


def make_gallery(
    model: SelectiveClassifier | None, curve: RobustnessCurve, count: int = 12
) -> Gallery:
    """Choose images for a gallery, and let the model judge their points again.

    Half of them are accepted mistakes and half are rejections, if there are enough of both, spread
    evenly from the nearest to the farthest point. Errors on clean images fill the rest.

    Args:
        model: The model that was evaluated; None leaves out predictions, T and scores.
        curve: A curve with its points.
        count: Maximum number of images.
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1 image, got {count}")
    points = curve.points
    if points is None:
        raise ValueError(
            "expected a curve with points, got one without; load the run from its folder with "
            "adversarial.safetensors, or make the gallery right after the evaluation"
        )
    records, picked = curve.records, _pick(curve.records, count)
    found = {
        "mistake": (points.outer, records.outer_distance, records.outer_by),
        "rejection": (points.rejected, records.rejected_radius, records.rejected_by),
    }
    clean = points.clean[[row for row, _ in picked]]
    perturbed, exhibits = clean.clone(), []
    for place, (row, kind) in enumerate(picked):
        images, distance, by = found[kind]
        perturbed[place] = images[row]
        exhibits.append(
            Exhibit(
                index=int(records.index[row]),
                label=int(records.label[row]),
                clean_label=int(records.clean_label[row]),
                kind=kind,
                attack=by[row],
                distance=float(distance[row]),
            )
        )
    gallery = Gallery(exhibits=tuple(exhibits), clean=clean, perturbed=perturbed)
    return _ask(model, gallery) if model is not None and picked else gallery


def _pick(records: Records, count: int) -> list[tuple[int, Kind]]:
    # The loss of an image with an accepted mistake is settled: its rejections matter little.
    rejection = torch.where(records.outer_broken, torch.inf, records.rejected_radius)
    distance: dict[Kind, Tensor] = {"rejection": rejection, "mistake": records.outer_distance}
    mistakes, rejections = _sorted(distance["mistake"]), _sorted(distance["rejection"])
    half = min(len(mistakes), max(count // 2, count - len(rejections)))
    picked: list[tuple[int, Kind]] = [(row, "mistake") for row in _evenly(mistakes, half)]
    picked += [(row, "rejection") for row in _evenly(rejections, count - half)]
    clean = [(int(row), kind) for kind, each in distance.items() for row in (each == 0).nonzero()]
    return picked + clean[: count - len(picked)]


def _sorted(distance: Tensor) -> list[int]:
    """Rows with a point that is not the image itself, the nearest first."""
    order = distance.argsort(stable=True).tolist()
    return [row for row in order if 0 < float(distance[row]) < torch.inf]


def _evenly(rows: list[int], count: int) -> list[int]:
    """At most so many of the rows, from the first to the last."""
    if count <= 1 or count >= len(rows):
        return rows[:count]
    return [rows[round(step * (len(rows) - 1) / (count - 1))] for step in range(count)]


def _ask(model: SelectiveClassifier, gallery: Gallery) -> Gallery:
    """Add what the model says at the points."""
    points = gallery.perturbed.to(network_device(model.base))
    selection, view = model(points), model.look(points, path=(1.0,))
    transformed, moved = None, [None] * len(gallery)
    if view.points:
        transformed = view.points[-1].detach().to("cpu", gallery.perturbed.dtype)
        moved = view.end_logits.argmax(dim=1).tolist()
    answers = (selection.labels.tolist(), selection.predicted.tolist(), selection.score.tolist())
    exhibits = []
    for told, label, predicted, score, end in zip(gallery.exhibits, *answers, moved, strict=True):
        holds = label != told.label and (label == REJECTED) == (told.kind == "rejection")
        told = replace(told, predicted=predicted, moved=end, score=score, holds=holds)
        exhibits.append(told)
    return replace(gallery, exhibits=tuple(exhibits), transformed=transformed)


def save_gallery(gallery: Gallery, folder: str | Path) -> Path:
    """Write `gallery.safetensors` and `gallery.json` into a run's folder."""
    path = Path(folder)
    write_tensors(path / "gallery.safetensors", gallery.pictures)
    content = {"schema": SCHEMA, "exhibits": [asdict(exhibit) for exhibit in gallery.exhibits]}
    write_atomically(path / "gallery.json", json.dumps(content, indent=1) + "\n")
    return path


def load_gallery(folder: str | Path) -> Gallery | None:
    """Read what `save_gallery` wrote; None if the folder has no gallery."""
    from safetensors.torch import load_file

    path = Path(folder)
    if not (path / "gallery.json").is_file():
        return None
    content: dict[str, Any] = json.loads((path / "gallery.json").read_text())
    if content.get("schema") != SCHEMA:
        raise ValueError(
            f"{path / 'gallery.json'}: expected schema {SCHEMA}, got {content.get('schema')!r}; "
            "it was written by another version of cpr-wrap"
        )
    pictures = load_file(path / "gallery.safetensors")
    exhibits = tuple(Exhibit(**entry) for entry in content["exhibits"])
    return Gallery(exhibits=exhibits, **pictures)
