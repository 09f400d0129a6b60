"""Which donors an evaluation uses: given ones, a known data set's, or the evaluated images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from cpr_wrap._checks import check_images, check_labels
from cpr_wrap.attacks.adaptive import Attack, Stage
from cpr_wrap.attacks.donors import Donors, DonorStarts, per_class
from cpr_wrap.data import donor_pool
from cpr_wrap.data.datasets import DATASETS
from cpr_wrap.data.images import Wanted
from cpr_wrap.data.own import load_npz
from cpr_wrap.engine.images import ImageSource
from cpr_wrap.selective import SelectiveClassifier

PER_CLASS = 100  # of a known data set, for most restarts
_MOST = 500  # of a known data set, for rounds of further restarts and, a fifth of them, for audits
_SCANNED = 2000  # of the evaluated images, where they have to do
_RECOGNISED = 0.5  # share of a pool that a network trained on its data set answers right

DonorsLike: TypeAlias = "Donors | tuple[Tensor, Tensor] | str | Path"
"""Images and labels, a `.npz` file of both, or the name of a known data set."""


def choose_donors(
    wanted: DonorsLike | None,
    model: SelectiveClassifier,
    stages: Sequence[Stage],
    source: ImageSource,
    num_classes: int,
) -> Donors | None:
    """The donors of a run; None where no stage starts from any.

    Args:
        wanted: What the caller asked for; None leaves the choice to us.
        model: The classifier under attack.
        stages: What will be run.
        source: The images under evaluation.
        num_classes: How many classes there are.
    """
    uses = any(isinstance(s, Attack) and isinstance(s.starts, DonorStarts) for s in stages)
    if not uses:
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
    """Training images of a known data set, if the network answers them right.

    Args:
        model: The classifier under attack.
        shape: Shape of an image.
        num_classes: How many classes there are.
        unused: Take images that evaluations do not use, for checking them.
    """
    for name in DATASETS:
        if DATASETS[name].num_classes != num_classes or tuple(DATASETS[name].shape) != shape:
            continue
        known = _training_images(name, unused=unused)
        if known and _answers(model, *per_class(known.images, known.labels, 50)) >= _RECOGNISED:
            return known
    return None


def _training_images(name: str, *, unused: bool = False) -> Donors | None:
    """Those of a known data set that evaluations use, or those that only audits do."""
    pool = donor_pool(name, _MOST)
    if pool is None:
        return None
    kept = _last_fifth(pool.labels) == unused
    first = None if unused else PER_CLASS
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
    like = next(model.base.parameters(), images)
    with torch.no_grad():
        found = [model.logits(part.to(like.device)).argmax(dim=1) for part in images.split(100)]
    return float((torch.cat(found).cpu() == labels).double().mean())


def _evaluated(source: ImageSource) -> Donors:
    """The first evaluated images of every class: the same for all blocks and processes."""
    block = source.block(range(min(len(source), _SCANNED)), torch.device("cpu"), torch.float32)
    check_images(block.x)
    return Donors(*per_class(block.x, block.y, PER_CLASS), "evaluated images of other classes")
