"""Re-checks recorded adversarial inputs from scratch, without the engine.

Nothing here uses the balls, the solver, the block or the engine: distances are taken with NumPy in
float64 and verdicts by plain calls of the model, so that a mistake there cannot hide here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cpr_wrap.evaluation.result import load_result
from cpr_wrap.evaluation.store import weights_digest
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.selective import SelectiveClassifier

_NEAR = 1e-6  # distances are recorded in float64; this is rounding of their sums


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a re-check found.

    Attributes:
        checked: Recorded points that were checked.
        problems: What does not hold, one sentence each.
    """

    checked: int
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether everything recorded is true."""
        return not self.problems


def _distance(a: Tensor, b: Tensor, norm: str) -> np.ndarray[Any, Any]:
    difference = a.double().numpy() - b.double().numpy()
    flat = np.abs(difference.reshape(len(difference), -1))
    return np.asarray(flat.max(axis=1) if norm == "Linf" else np.sqrt((flat**2).sum(axis=1)))


def _labels(model: SelectiveClassifier, points: Tensor, batch_size: int) -> list[int]:
    device = next((p.device for p in model.base.parameters()), points.device)
    answers: list[int] = []
    for part in points.split(batch_size):
        answers.extend(model.predict(part.to(device)).tolist())
    return answers


def verify_curve(
    model: SelectiveClassifier, curve: RobustnessCurve, *, batch_size: int = 64
) -> Verification:
    """Ask the model itself about every recorded point.

    Args:
        model: The selective classifier that was evaluated, in memory.
        curve: The curve, with its points.
        batch_size: Images asked about at once.
    """
    points = curve.details.get("points")
    if not points:
        raise ValueError("the result has no adversarial inputs to check; it was saved without them")
    found = curve.records
    problems: list[str] = []
    clean = points["clean"]
    answers = _labels(model, clean, batch_size)
    for row, (answer, recorded) in enumerate(zip(answers, found.clean_label.tolist(), strict=True)):
        if answer != recorded:
            number = int(found.index[row])
            problems.append(f"image {number}: clean answer {answer}, recorded {recorded}")
    checked = len(answers)
    for kind, recorded_distance in (
        ("outer", found.outer_distance),
        ("rejected", found.rejected_radius),
    ):
        rows = recorded_distance.isfinite().nonzero().flatten()
        if len(rows) == 0:
            continue
        checked += len(rows)
        problems.extend(_check_points(model, curve, kind, rows, recorded_distance, batch_size))
    return Verification(checked=checked, problems=tuple(problems))


def _check_points(
    model: SelectiveClassifier,
    curve: RobustnessCurve,
    kind: str,
    rows: Tensor,
    recorded: Tensor,
    batch_size: int,
) -> list[str]:
    found, points = curve.records, curve.details["points"]
    candidates, clean = points[kind][rows], points["clean"][rows]
    distance = _distance(candidates, clean, found.norm)
    low, high = candidates.flatten(1).aminmax(dim=1)
    # A point outside the pixel range is a problem of its own; its verdict is asked all the same.
    answers = _labels(model, candidates.nan_to_num(0).clamp(0, 1), batch_size)
    problems = []
    for place, row in enumerate(rows.tolist()):
        name = f"image {int(found.index[row])}, {kind} point"
        y, answer = int(found.label[row]), answers[place]
        if not (low[place] >= 0 and high[place] <= 1):
            problems.append(f"{name}: pixels outside [0, 1]")
        if distance[place] > found.eps + _NEAR:
            problems.append(f"{name}: distance {distance[place]:.6g} beyond eps {found.eps:g}")
        if abs(distance[place] - float(recorded[row])) > _NEAR:
            problems.append(
                f"{name}: distance {distance[place]:.6g}, recorded {float(recorded[row]):.6g}"
            )
        if kind == "rejected" and answer != -1:
            problems.append(f"{name}: recorded as rejected, but answered {answer}")
        if kind == "outer" and answer in (-1, y):
            what = "rejected" if answer == -1 else "right"
            problems.append(f"{name}: recorded as accepted and wrong, but it is {what}")
    return problems


def verify_result(
    folder: str | Path, model: SelectiveClassifier | None = None, **load_options: Any
) -> Verification:
    """Re-check a result folder.

    Args:
        folder: As `save_result` wrote it.
        model: The classifier in memory; if left out, it is loaded from the recorded address and
            given the recorded rule.
        **load_options: Passed on to `cpr_wrap.load`, e.g. `model_dir`.
    """
    curve = load_result(folder)
    details = curve.details
    problems: list[str] = []
    if model is None:
        model = _load(details, load_options)
    recorded = (details.get("digests") or {}).get("weights")
    if recorded is not None and weights_digest(model.base) != recorded:
        problems.append("the model's weights are not the ones that were evaluated")
    answer = verify_curve(model, curve)
    problems.extend(answer.problems)
    return Verification(checked=answer.checked, problems=tuple(problems))


def _load(details: Any, options: dict[str, Any]) -> SelectiveClassifier:
    from cpr_wrap.selective import rule_from_config
    from cpr_wrap.zoo import load

    address = details.get("model")
    if not address:
        raise ValueError("the result does not say which model it is about; pass the model itself")
    return load(address, rule=rule_from_config(details["settings"]["rule"]), **options)
