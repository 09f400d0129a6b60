"""The images models are judged on: `load_data("mnist", "robust")`, `load_folder(path)`."""

from __future__ import annotations

from cpr_wrap.data.datasets import DATASETS, DataSet, load_data
from cpr_wrap.data.folder import FolderImages, load_folder
from cpr_wrap.data.images import PARTS, ImageData, paper_split

__all__ = [
    "DATASETS",
    "PARTS",
    "DataSet",
    "FolderImages",
    "ImageData",
    "load_data",
    "load_folder",
    "paper_split",
]
