"""Result folders: everything a reader needs to believe, repeat or re-check an evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from cpr_wrap.metrics import PAPER_LOSSES, Records, RobustnessCurve

SCHEMA = 1
RESULT, PER_IMAGE, POINTS = "result.json", "per_image.jsonl", "adversarial.safetensors"
_APART = ("points", "provenance")  # kept in files of their own


def save_result(
    curve: RobustnessCurve, folder: str | Path, *, extra: Mapping[str, Any] | None = None
) -> Path:
    """Write a curve as `result.json`, `per_image.jsonl` and `adversarial.safetensors`.

    Args:
        curve: The curve, as `robustness_curve` gives it.
        folder: Made if it does not exist.
        extra: More top-level entries: name, model, dataset, command, calibration, audit …

    Returns:
        The folder.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    details = dict(curve.details)
    content = {
        "schema": SCHEMA,
        "name": path.name,
        **{key: value for key, value in details.items() if key not in _APART},
        "eps": curve.eps,
        "norm": curve.records.norm,
        "images": len(curve.records),
        "curve": curve.table(),
        "losses": [_loss(curve, loss) for loss in PAPER_LOSSES],
        "clean": curve.summary()["clean"],
        "first_broken_by": curve.records.first_broken_by(),
        "first_rejected_by": curve.records.first_rejected_by(),
        **(extra or {}),
    }
    (path / RESULT).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    lines = curve.records.to_rows()
    for line, origin in zip(lines, details.get("provenance") or [{}] * len(lines), strict=True):
        line["provenance"] = origin
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    (path / PER_IMAGE).write_text(text)
    points = details.get("points")
    if points:
        save_file({name: t.contiguous() for name, t in points.items()}, str(path / POINTS))
    return path


def _loss(curve: RobustnessCurve, loss: Any) -> dict[str, Any]:
    interval = curve.total_robust_loss_interval(loss)
    return {
        "name": loss.name,
        "value": curve.total_robust_loss(loss),
        "low": interval.low,
        "high": interval.high,
        "trapezoid": curve.total_robust_loss(loss, rule="trapezoid"),
    }


def load_result(folder: str | Path) -> RobustnessCurve:
    """Read a result folder back; the curve is computed anew from the per-image records."""
    path = Path(folder)
    content = _read_json(path / RESULT)
    if content.get("schema") != SCHEMA:
        raise ValueError(
            f"{path / RESULT}: expected schema {SCHEMA}, got {content.get('schema')!r}; "
            "it was written by another version of cpr-wrap"
        )
    lines = [json.loads(line) for line in _read_text(path / PER_IMAGE).splitlines()]
    records = Records.from_rows(lines, eps=content["eps"], norm=content["norm"])
    content["provenance"] = [line.get("provenance") for line in lines]
    if (path / POINTS).exists():
        try:
            content["points"] = load_file(str(path / POINTS))
        except SafetensorError as error:
            raise ValueError(f"{path / POINTS} is damaged: {error}") from error
    alphas = tuple(row["alpha"] for row in content["curve"])
    return RobustnessCurve(records, alphas=alphas, details=content)


def _read_text(file: Path) -> str:
    if not file.exists():
        raise FileNotFoundError(
            f"{file} does not exist; expected a result folder as `cpr-wrap curve --out` writes it"
        )
    return file.read_text()


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: expected an object, got {type(content).__name__}")
    return content
