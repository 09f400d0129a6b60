"""Images with labels: `load_data("mnist", "robust")`, `load_folder(path)`."""

from __future__ import annotations

from cpr_wrap.data.datasets import DATASETS, LOADERS, DonorPool, donor_pool, load_data
from cpr_wrap.data.folder import FolderImages, load_folder, open_picture
from cpr_wrap.data.images import PARTS, ImageData, paper_split
from cpr_wrap.data.torchvision import DataSet

__all__ = [
    "DATASETS",
    "LOADERS",
    "PARTS",
    "DataSet",
    "DonorPool",
    "FolderImages",
    "ImageData",
    "donor_pool",
    "load_data",
    "load_folder",
    "open_picture",
    "paper_split",
]
