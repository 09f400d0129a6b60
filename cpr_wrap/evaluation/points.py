"""Points from elsewhere: somebody else's attack, an earlier run, a smaller eps."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from cpr_wrap._checks import check_images
from cpr_wrap.attacks.given import GivenPoints
from cpr_wrap.metrics import RobustnessCurve

PointsLike: TypeAlias = "tuple[Tensor, Tensor] | RobustnessCurve | str | Path"
"""Image numbers `(M,)` and points `(M, ...)`, a curve with its points, or a folder or file."""


def given_points(thing: PointsLike) -> GivenPoints:
    """Read points from what a user gave."""
    if isinstance(thing, RobustnessCurve):
        return _of_curve(thing, thing.about.name)
    if isinstance(thing, str | Path):
        return _of_file(Path(thing))
    if not isinstance(thing, tuple) or len(thing) != 2:
        raise TypeError(
            "points: expected image numbers and points, a curve, a result folder or a file, got "
            f"{type(thing).__name__}"
        )
    return _checked(torch.as_tensor(thing[0]), torch.as_tensor(thing[1]), "")


def _of_file(path: Path) -> GivenPoints:
    if path.is_dir():
        from cpr_wrap.evaluation.result import load_result

        return _of_curve(load_result(path), path.name)
    if not path.exists():
        raise FileNotFoundError(f"points: {path} does not exist")
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(
            f"points: expected a .npz or .safetensors file or a result folder, got {path}"
        )
    try:
        held = _read(path)
    except Exception as error:
        raise ValueError(
            f"points: {path} is damaged, or holds something else than arrays of numbers: {error}"
        ) from error
    if not {"index", "points"} <= set(held):
        raise ValueError(
            f"points: expected arrays 'index' and 'points' in {path}, got {', '.join(held)}"
        )
    return _checked(held["index"], held["points"], path.name)


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as data:
            return {name: torch.from_numpy(data[name]) for name in data.files}
    from safetensors.torch import load_file

    return load_file(path)


def _of_curve(curve: RobustnessCurve, source: str) -> GivenPoints:
    if curve.points is None:
        raise ValueError(f"points: the result {source!r} was saved without its points")
    found = curve.records
    parts = [
        (found.outer_broken & (found.outer_distance > 0), curve.points.outer),
        (found.rejected_radius.isfinite() & (found.rejected_radius > 0), curve.points.rejected),
    ]
    index = torch.cat([found.index[mask] for mask, _ in parts])
    return _checked(index, torch.cat([points[mask] for mask, points in parts]), source)


def _checked(index: Tensor, points: Tensor, source: str) -> GivenPoints:
    if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(
            f"points: expected whole image numbers (M,), got {index.dtype} of shape "
            f"{tuple(index.shape)}"
        )
    if len(index) != len(points):
        raise ValueError(
            f"points: expected one image number per point, got {len(index)} and {len(points)}"
        )
    if len(points):
        if points.dtype == torch.uint8:
            points = points.float() / 255
        check_images(points, "points")
    return GivenPoints(index.long(), points, source)
