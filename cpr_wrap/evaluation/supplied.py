"""What an evaluation starts from beside its images: donors, and points found elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cpr_wrap._checks import check_images, check_labels
from cpr_wrap.attacks.adaptive import Attack, GivenPoints, Stage
from cpr_wrap.attacks.donors import Donors, DonorStarts
from cpr_wrap.data import donor_pool
from cpr_wrap.data.datasets import DATASETS
from cpr_wrap.data.images import Wanted, per_class
from cpr_wrap.data.own import load_npz
from cpr_wrap.engine.images import ImageSource
from cpr_wrap.evaluation.result import load_result
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.selective import SelectiveClassifier, network_device

_PER_CLASS = 100  # of a known data set, for most restarts
_MOST = 500  # of a known data set, for rounds of further restarts and, a fifth of them, for audits
_SCANNED = 2000  # of the evaluated images, where they have to do
_ASKED = 20  # of each class, whether the network knows the data set
_RECOGNIZED = 0.5  # share of a pool that a network trained on its data set answers right

DonorsLike: TypeAlias = "Donors | tuple[Tensor, Tensor] | str | Path"
"""Images and labels, a `.npz` file of both, or the name of a known data set."""
PointsLike: TypeAlias = "tuple[Tensor, Tensor] | RobustnessCurve | str | Path"
"""Image numbers `(M,)` and points `(M, ...)`, a curve with its points, or a folder or file."""


def choose_donors(
    wanted: DonorsLike | None,
    model: SelectiveClassifier,
    stages: Sequence[Stage],
    source: ImageSource,
    num_classes: int,
) -> Donors | None:
    """The donors of a run; None where no stage starts from any."""
    if not any(isinstance(s, Attack) and isinstance(s.starts, DonorStarts) for s in stages):
        return None
    shape = source.block(range(1), torch.device("cpu"), torch.float32).x.shape[1:]
    if wanted is None:
        return known_donors(model, shape, num_classes) or _evaluated(source)
    donors = _read(wanted)
    if donors.images.shape[1:] != shape:
        raise ValueError(
            f"donors: expected images of shape {tuple(shape)} like those under evaluation, got "
            f"{tuple(donors.images.shape[1:])}"
        )
    check_labels(donors.labels, len(donors.labels), num_classes, name="donors' labels")
    missing = sorted(set(range(num_classes)) - set(donors.labels.tolist()))
    if missing:
        some = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        note = f"no donors of {len(missing)} of {num_classes} classes ({some})"
        return Donors(donors.images, donors.labels, f"{donors.source}, {note}", donors.first)
    return donors


def _read(wanted: DonorsLike) -> Donors:
    if isinstance(wanted, Donors):
        return wanted
    if isinstance(wanted, tuple):
        if len(wanted) != 2:
            raise TypeError(f"donors: expected (images, labels), got {len(wanted)} things")
        return Donors(torch.as_tensor(wanted[0]), torch.as_tensor(wanted[1]))
    if not isinstance(wanted, str | Path):
        raise TypeError(
            "donors: expected (images, labels), a file, or the name of a data set, got "
            f"{type(wanted).__name__}"
        )
    if str(wanted) in DATASETS:
        known = _training_images(str(wanted))
        if known is None:
            raise LookupError(f"donors: the training images of {wanted} are not there")
        return known
    data = load_npz(Path(wanted), "train", Wanted())
    return Donors(data.images, data.labels, Path(wanted).name)


def known_donors(
    model: SelectiveClassifier, shape: torch.Size, num_classes: int, *, unused: bool = False
) -> Donors | None:
    """Training images of a known data set that the network knows; `unused` ones are for audits."""
    for name in DATASETS:
        if DATASETS[name].num_classes != num_classes or tuple(DATASETS[name].shape) != shape:
            continue
        known = _training_images(name, unused=unused)
        if known and _answers(model, *per_class(known.images, known.labels, _ASKED)) >= _RECOGNIZED:
            return known
    return None


def _training_images(name: str, *, unused: bool = False) -> Donors | None:
    """Those of a known data set that evaluations use, or those that only audits do."""
    pool = donor_pool(name, _MOST)
    if pool is None:
        return None
    kept = _last_fifth(pool.labels) == unused
    first = None if unused else _PER_CLASS
    return Donors(pool.images[kept], pool.labels[kept], f"{name} training images", first)


def _last_fifth(labels: Tensor) -> Tensor:
    """Which are the last fifth of their class `(D,)`."""
    last = torch.zeros_like(labels, dtype=torch.bool)
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        last[rows[len(rows) - len(rows) // 5 :]] = True
    return last


def _answers(model: SelectiveClassifier, images: Tensor, labels: Tensor) -> float:
    """Share of images that the network alone predicts right."""
    device = network_device(model.base, images.device)
    with torch.no_grad():
        found = [model.logits(part.to(device)).argmax(dim=1) for part in images.split(100)]
    return float((torch.cat(found).cpu() == labels).double().mean())


def _evaluated(source: ImageSource) -> Donors:
    """The first evaluated images of every class: the same for all blocks and processes."""
    block = source.block(range(min(len(source), _SCANNED)), torch.device("cpu"), torch.float32)
    check_images(block.x)
    return Donors(*per_class(block.x, block.y, _PER_CLASS), "evaluated images of other classes")


def given_points(thing: PointsLike) -> GivenPoints:
    """Read points from what a user gave."""
    given: Any = thing
    source = thing.about.name if isinstance(thing, RobustnessCurve) else ""
    if isinstance(thing, str | Path):
        path = Path(thing)
        source = path.name
        given = load_result(path) if path.is_dir() else _read_points(path)
    if isinstance(given, RobustnessCurve):
        if given.points is None:
            raise ValueError(f"points: the result {source!r} was saved without its points")
        given = useful_points(given)
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(
            "points: expected image numbers and points, a curve, a result folder or a file, got "
            f"{type(thing).__name__}"
        )
    index, points = map(torch.as_tensor, given)
    if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(
            f"points: expected whole image numbers (M,), got {index.dtype} of shape "
            f"{tuple(index.shape)}"
        )
    if len(index) != len(points):
        raise ValueError(
            f"points: expected one image number per point, got {len(index)} and {len(points)}"
        )
    if points.dtype == torch.uint8:
        points = points.float() / 255
    if len(points):
        check_images(points, "points")
    return GivenPoints(index.long(), points, source)


def _read_points(path: Path) -> tuple[Tensor, Tensor]:
    from safetensors.torch import load_file

    if not path.exists():
        raise FileNotFoundError(f"points: {path} does not exist")
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(
            f"points: expected a .npz or .safetensors file or a result folder, got {path}"
        )
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as data:
                held = {name: torch.from_numpy(data[name]) for name in data.files}
        else:
            held = load_file(path)
    except Exception as error:
        raise ValueError(
            f"points: {path} is damaged, or holds something else than arrays of numbers: {error}"
        ) from error
    if not {"index", "points"} <= set(held):
        raise ValueError(
            f"points: expected arrays 'index' and 'points' in {path}, got {', '.join(held)}"
        )
    return held["index"], held["points"]


def useful_points(
    curve: RobustnessCurve, known: RobustnessCurve | None = None
) -> tuple[Tensor, Tensor]:
    """Image numbers `(M,)` and points `(M, ...)` of a curve that may raise a known one's losses.

    An image that has an accepted mistake costs 1 already, and of rejected points only closer ones
    cost more.
    """
    theirs, points = curve.records, curve.points
    assert points is not None
    outer = theirs.outer_broken & (theirs.outer_distance > 0)
    rejected = theirs.rejected_radius.isfinite() & (theirs.rejected_radius > 0)
    if known is not None:
        ours = known.records
        outer = outer & ~ours.outer_broken
        rejected = rejected & ~ours.outer_broken & (theirs.rejected_radius < ours.rejected_radius)
    index = torch.cat([theirs.index[outer], theirs.index[rejected]])
    return index, torch.cat([points.outer[outer], points.rejected[rejected]])
