"""Donors: training images of every class from which attacks start."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from cpr_wrap._files import digest
from cpr_wrap.data.datasets import DATASETS, load_data
from cpr_wrap.data.images import Wanted
from cpr_wrap.data.own import load_npz

_BUNDLED_POOL = Path(__file__).parent.parent / "bundled" / "mnist" / "train_pool.npz"


class DonorPool(NamedTuple):
    """Training images, the same number per class.

    Attributes:
        images: Pixels `(N, C, H, W)` in [0, 1], ordered by class.
        labels: Classes `(N,)`.
        digest: A digest of both.
    """

    images: Tensor
    labels: Tensor
    digest: str


def donor_pool(
    name: str, per_class: int = 20, data_dir: str | Path | None = None
) -> DonorPool | None:
    """The first training images of each class of a known data set.

    Args:
        name: "mnist", whose donors come with this package, "svhn" or "cifar10".
        per_class: Images per class, or as many as there are: 500 for MNIST.
        data_dir: Folder of the other data sets, see `load_data`.

    Returns:
        The donors; None if there are no training images.

    Example:
        >>> pool = donor_pool("mnist", per_class=2)
        >>> pool.images.shape
        torch.Size([20, 1, 28, 28])
    """
    num_classes = DATASETS[name].num_classes
    try:
        if name == "mnist":
            data = load_npz(_BUNDLED_POOL, "train", Wanted())
        else:
            data = load_data(name, "train", data_dir)
    except LookupError:
        return None
    images, labels = data.images, data.labels
    found = [(labels == label).nonzero().flatten() for label in range(num_classes)]
    if per_class < 1:
        raise ValueError(f"per_class: expected at least 1, got {per_class}")
    rows = [row for places in found for row in places[:per_class].tolist()]
    return DonorPool(images[rows], labels[rows], digest(images[rows], labels[rows]))
