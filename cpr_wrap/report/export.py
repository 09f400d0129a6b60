"""Results for others: RobustBench's model_info file, and adversarial images as a tensor file."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cpr_wrap import __version__
from cpr_wrap._files import write_atomically
from cpr_wrap._text import eps_text
from cpr_wrap.metrics import RobustnessCurve, Settings
from cpr_wrap.report.run import Run, RunLike, as_run

Wanted = Literal["any", "mistake", "rejection"]

_FOOTNOTE = (
    "A selective classifier; every rejection counts as a mistake here. The robust accuracy was "
    "measured with adaptive attacks by cpr-wrap."
)


def model_info(
    run: RunLike,
    *,
    name: str | None = None,
    authors: str = "",
    link: str = "",
    venue: str = "N/A",
    architecture: str = "N/A",
    additional_data: bool | None = None,
    reported: float | None = None,
    autoattack_acc: float | None = None,
) -> dict[str, Any]:
    """Describe a run in RobustBench's format, as plain values ready for JSON.

    RobustBench has no rejection, so every rejection counts as a mistake here: `clean_acc` is the
    share of images that are accepted and right, and `external`, by which its tables sort, is the
    robustness at alpha = 1 under our attacks. Figures with rejection are under the key `cpr_wrap`.

    Args:
        run: The run.
        name: Title of the paper or model; the run's name by default.
        authors: Authors of the model.
        link: Web address of the paper or model.
        venue: Where it was published.
        architecture: Architecture of the base network.
        additional_data: Whether it was trained with additional data.
        reported: Robust accuracy that its authors report, as a share.
        autoattack_acc: Robust accuracy under AutoAttack, as a share, if it was measured. It is
            never filled in from our own attacks.
    """
    run = as_run(run)
    curve, settings = run.curve, run.curve.settings
    if settings is None:
        raise ValueError(
            f"run {run.name!r} does not say which rejection rule it used (settings.rule), so its "
            "passes per prediction are unknown; evaluate with robustness_curve, which records it"
        )
    right = curve.records.clean_label == curve.records.label
    return {
        "link": link,
        "name": name or run.name,
        "authors": authors,
        "additional_data": additional_data,
        "number_forward_passes": settings.rule.forwards,
        "dataset": curve.about.dataset,
        "venue": venue,
        "architecture": architecture,
        "eps": eps_text(curve.eps),
        "clean_acc": _percentage(float(right.double().mean())),
        "reported": _percentage(reported),
        "autoattack_acc": _percentage(autoattack_acc),
        "external": _percentage(curve.accuracy_at(1.0)),
        "footnote": _FOOTNOTE,
        "cpr_wrap": _own(curve, settings),
    }


def _own(curve: RobustnessCurve, settings: Settings) -> dict[str, Any]:
    figures, made, rule = curve.summary(), curve.provenance, settings.rule
    return {
        "version": __version__,
        "images": figures["images"],
        "norm": figures["norm"],
        "rule": rule.config,
        "budget": settings.budget or None,
        "forward_passes_per_prediction": rule.forwards,
        "backward_passes_per_prediction": rule.backwards,
        "clean": figures["clean"],
        "robustness_at_alpha": figures["accuracy_at"],
        "total_robust_loss": figures["total_robust_loss"],
        "digests": {} if made is None else {"weights": made.weights, "data": made.data},
    }


def _percentage(share: float | None) -> str | None:
    """RobustBench writes percentages as text."""
    return None if share is None else f"{100 * share:.2f}"


def write_model_info(run: RunLike, folder: str | Path = "model_info", **fields: Any) -> Path:
    """Write `model_info` where RobustBench looks for it: FOLDER/dataset/norm/Name.json.

    Args:
        run: The run.
        folder: RobustBench's `model_info` folder.
        fields: What `model_info` takes.
    """
    path = info_file(as_run(run), folder)
    write_atomically(path, json.dumps(model_info(run, **fields), indent=2, allow_nan=False) + "\n")
    return path


def info_file(run: Run, folder: str | Path) -> Path:
    """Where RobustBench looks for a run's file."""
    dataset = run.curve.about.dataset
    if not dataset:
        raise ValueError(
            f"run {run.name!r} does not say which data set it used, and RobustBench files models "
            "by data set; save it with about=About(dataset=...)"
        )
    return Path(folder) / _safe(dataset) / run.curve.records.norm / f"{_safe(run.name)}.json"


def _safe(name: str) -> str:
    """A name that stays in its folder."""
    return re.sub(r"[^\w+.-]+", "_", name).lstrip(".") or "_"


def adversarial_images(run: RunLike, goal: Wanted = "any", images: Tensor | None = None) -> Tensor:
    """One image per test image, in order: the point that was found, or the clean image.

    Args:
        run: A run with its points.
        goal: `mistake` gives accepted mistakes, `rejection` the nearest rejected points, and `any`
            the accepted mistake if there is one, else the rejected point. The last fits a
            classifier that must not reject.
        images: The whole test set `(M, ...)`, for images that were not attacked. Without it, the
            attacked images must be the first of the test set.

    Returns:
        Images `(N, ...)`, or `(M, ...)` with a test set.
    """
    run = as_run(run)
    records, points = run.curve.records, run.curve.points
    if points is None:
        raise ValueError(
            f"run {run.name!r} has no points; expected adversarial.safetensors in its folder"
        )
    chosen = points.clean.clone()
    if goal not in ("any", "mistake", "rejection"):
        raise ValueError(f"goal: expected 'any', 'mistake' or 'rejection', got {goal!r}")
    if goal in ("any", "rejection"):
        found = records.rejected_radius.isfinite()
        chosen[found] = points.rejected[found]
    if goal in ("any", "mistake"):
        chosen[records.outer_broken] = points.outer[records.outer_broken]
    index = records.index
    if images is None:
        order = index.argsort()
        if not torch.equal(index[order], torch.arange(len(records))):
            raise ValueError(
                "expected the first images of the test set, got others; give the whole test set as "
                "images, so that every point is in its place"
            )
        return chosen[order]
    if images.shape[1:] != chosen.shape[1:] or len(images) <= int(index.max()):
        raise ValueError(
            f"images: expected a test set of at least {int(index.max()) + 1} images of shape "
            f"{tuple(chosen.shape[1:])}, got shape {tuple(images.shape)}"
        )
    whole = images.detach().to("cpu", chosen.dtype, copy=True)
    whole[index] = chosen
    return whole


def write_adversarial_images(
    run: RunLike, path: str | Path, goal: Wanted = "any", images: Tensor | None = None
) -> Path:
    """Write `adversarial_images` as the `.pt` file that RobustBench takes for an evaluation."""
    path, data = Path(path), io.BytesIO()
    torch.save(adversarial_images(run, goal, images), data)
    write_atomically(path, data.getvalue())
    return path
