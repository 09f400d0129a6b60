"""Checks a result again from scratch, without the engine.

Nothing here uses the threat models, the solver or the engine. Distances are measured with NumPy in
float64, and verdicts are plain calls of the model. So a bug in the engine cannot hide here.

A check can show that a record is false, and that a folder was changed after its run. It cannot show
that a point was removed before the folder was written. Judging points from elsewhere can (`cpr-wrap
merge`, `robustness_curve(points=...)`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cpr_wrap._registry import import_module, trusted
from cpr_wrap.attacks.ensemble import BUDGETS
from cpr_wrap.engine.evaluate import stage_text
from cpr_wrap.engine.stages import REVISION
from cpr_wrap.engine.store import weights_digest
from cpr_wrap.evaluation import result
from cpr_wrap.evaluation.assemble import answers, coverage_of, images_digest, rule_facts
from cpr_wrap.metrics import RobustnessCurve, RuleFacts
from cpr_wrap.metrics.records import CLEAN, Records
from cpr_wrap.rule import RULES, find_rule, rule_from_config
from cpr_wrap.selective import REJECT, SelectiveClassifier

_ORDERS = {"Linf": np.inf, "L2": 2}
_NEAR = 1e-6  # distances are recorded in float64; this is rounding of their sums


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The outcome of a check."""

    checked: int  #: Number of images and points that the model judged again.
    problems: tuple[str, ...]  #: What does not hold, one sentence per problem.

    @property
    def holds(self) -> bool:
        """Whether everything recorded is true."""
        return not self.problems


def _distance(a: Tensor, b: Tensor, norm: str) -> np.ndarray[Any, Any]:
    if norm in _ORDERS:
        apart = a.double().flatten(1).numpy() - b.double().flatten(1).numpy()
        return np.asarray(np.linalg.norm(apart, ord=_ORDERS[norm], axis=1))
    from cpr_wrap.geometry import threat  # a threat model from elsewhere measures itself

    return threat(norm).distance(a, b).numpy()


def _differ(found: Records, what: str, labels: Tensor, recorded: Tensor) -> Iterator[str]:
    for row in (labels != recorded).nonzero().flatten().tolist():
        told = f"{what} {int(labels[row])}, recorded {int(recorded[row])}"
        yield f"image {int(found.index[row])}: {told}"


def verify_curve(
    model: SelectiveClassifier, curve: RobustnessCurve, *, batch_size: int = 64
) -> Verification:
    """Let the model judge every image and every point of a curve again.

    Args:
        model: The selective classifier that was evaluated, in memory.
        curve: The curve, with its points.
        batch_size: Images per batch.
    """
    if curve.points is None:
        raise ValueError(
            "the result has no adversarial inputs to check; it was saved or copied without them"
        )
    found, points = curve.records, curve.points
    if any(len(held) != len(found) for held in vars(points).values()):
        text = f"{len(found)} records, but {len(points.clean)} images and points"
        return Verification(checked=0, problems=(text,))
    clean = answers(model, points.clean, batch_size)
    problems = list(_differ(found, "clean answer", clean.labels, found.clean_label))
    if found.base_label is not None:
        problems += _differ(found, "the network answers", clean.predicted, found.base_label)
    checked = len(found)
    for kind, distances in (("outer", found.outer_distance), ("rejected", found.rejected_radius)):
        moved = (getattr(points, kind) != points.clean).flatten(1).any(dim=1)
        # A record without a point, or a point without a record: one of the two is wrong.
        rows = (moved | (distances.isfinite() & (distances > 0))).nonzero().flatten()
        if len(rows):
            checked += len(rows)
            problems += _check_points(model, curve, kind, rows, distances[rows], batch_size)
    return Verification(checked=checked, problems=tuple(problems))


def _check_points(
    model: SelectiveClassifier,
    curve: RobustnessCurve,
    kind: str,
    rows: Tensor,
    recorded: Tensor,
    batch_size: int,
) -> Iterator[str]:
    found, points = curve.records, curve.points
    candidates, clean = getattr(points, kind)[rows], points.clean[rows]  # type: ignore[union-attr]
    distance = _distance(candidates, clean, found.norm)
    low, high = candidates.flatten(1).aminmax(dim=1)
    # A point outside the pixel range is a problem of its own; its verdict is asked all the same.
    labels = answers(model, candidates.nan_to_num(0).clamp(0, 1), batch_size).labels.tolist()
    for place, row in enumerate(rows.tolist()):
        name = f"image {int(found.index[row])}, {kind} point"
        answer, told = labels[place], float(recorded[place])
        holds = answer == REJECT if kind == "rejected" else answer not in (REJECT, found.label[row])
        if not (low[place] >= 0 and high[place] <= 1):
            yield f"{name}: pixels outside [0, 1]"
        if distance[place] > found.eps + _NEAR:
            yield f"{name}: distance {distance[place]:.6g} beyond eps {found.eps:g}"
        elif math.isinf(told) and holds:
            yield f"{name}: it holds at distance {distance[place]:.6g}, but the record says none"
        if math.isinf(told):
            continue
        if abs(distance[place] - told) > _NEAR:
            yield f"{name}: distance {distance[place]:.6g}, recorded {told:.6g}"
        if not holds and kind == "rejected":
            yield f"{name}: recorded as rejected, but answered {answer}"
        elif not holds:
            what = "rejected" if answer == REJECT else "right"
            yield f"{name}: recorded as accepted and wrong, but it is {what}"


def verify_result(
    folder: str | Path, model: SelectiveClassifier | None = None, **load_options: Any
) -> Verification:
    """Check a result folder again: files, digests, figures, records and points.

    Args:
        folder: A folder that `save_result` wrote.
        model: The classifier; by default it is loaded from the recorded address, with the recorded
            rule.
        **load_options: Options of `load_recorded`, e.g. `address`, `model_dir` or `network`.

    Example:
        >>> import torch
        >>> import tempfile
        >>> from cpr_wrap import Confidence, SelectiveClassifier, robustness_curve, save_result
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
        >>> x = torch.rand(2, 1, 2, 2)
        >>> model = SelectiveClassifier(network, Confidence(threshold=0.5))
        >>> curve = robustness_curve(model, x, network(x).argmax(dim=1), 0.05, budget="quick")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     verify_result(save_result(curve, folder), model).holds
        True
    """
    try:
        curve = result.load_result(folder, check=False)
    except ValueError as error:
        return Verification(checked=0, problems=(str(error),))
    content = result.read_file(folder)
    if model is None:
        model = load_recorded(curve, folder, **load_options)
    problems = list(_file_problems(folder, content, curve))
    if curve.provenance is not None and weights_digest(model) != curve.provenance.weights:
        problems.append("the model's weights are not the ones that were evaluated")
    told = None if curve.settings is None else curve.settings.rule
    if told is not None and _facts(told) != _facts(rule_facts(model.rule)):
        problems.append(f"the model's rule is {model.rule.describe()}, recorded is {told.text}")
    answer = verify_curve(model, curve)
    if answer.holds and curve.coverage is not None:
        fresh = coverage_of(model, curve)
        if fresh is None or not _close(vars(fresh), vars(curve.coverage), 1e-5):
            problems.append("coverage: not what the model gives")
    return Verification(checked=answer.checked, problems=(*problems, *answer.problems))


def _facts(rule: RuleFacts) -> Any:
    """A rule's settings and what follows from them; how it is worded may differ by version."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(replace(rule, text="", address=""))


def _file_problems(
    folder: str | Path, content: result.ResultFile, curve: RobustnessCurve
) -> Iterator[str]:
    """What the files say against each other, without the model."""
    yield from result.foreign_files(folder, content)
    plain = result.read_json(folder)
    if plain.get("seal") != result.seal_of(plain):
        yield "result.json was changed since the run"
    for name, told, true in (
        ("number of images", content.images, len(curve.records)),
        ("eps in the settings", content.settings and content.settings.eps, curve.eps),
        ("norm in the settings", content.settings and content.settings.norm, curve.records.norm),
    ):
        if told is not None and told != true:
            yield f"{name}: recorded {told}, but the records say {true}"
    theirs: Mapping[str, object] = content.figures
    for key, value in result.figures_of(curve).items():
        if not _close(value, theirs[key]):
            yield f"figures.{key}: not what the records give"
    if curve.points is not None and curve.provenance is not None:
        found = curve.records
        if images_digest(curve.points.clean, found.label, found.index) != curve.provenance.data:
            yield "the images, labels or numbers are not the ones that were evaluated"
    yield from _record_problems(curve)
    yield from _share_problems(curve)
    yield from _budget_problems(curve)


def _record_problems(curve: RobustnessCurve) -> Iterator[str]:
    """Records that contradict each other, or name attacks that were not run."""
    found = curve.records
    ran = {stage.attack for stage in curve.passes} | {CLEAN}
    for name in sorted({*found.outer_by, *found.rejected_by} - ran - {""}):
        yield f"{name!r} found points, but is not among the attacks that were run"
    if found.boundary_distance is not None:
        # An accepted mistake is beyond the network's boundary.
        for row in (found.boundary_distance > found.outer_distance).nonzero().flatten().tolist():
            yield (
                f"image {int(found.index[row])}: the boundary is recorded at "
                f"{found.boundary_distance[row]:.6g}, a mistake at {found.outer_distance[row]:.6g}"
            )


def _share_problems(curve: RobustnessCurve) -> Iterator[str]:
    """Shares that are not what the counts beside them give."""
    numbers, count = set(curve.records.index.tolist()), len(curve.records)
    for row in curve.ablation or ():
        if not set(row.lost) <= numbers or not _close(row.robustness, 1 - len(row.lost) / count):
            yield f"ablation of {row.attack}: not what its lost images give"
    facts = curve.calibration
    if facts is None:
        return
    if not _close(facts.measured_rate, facts.num_rejected / max(1, facts.num_correct)):
        yield "calibration: its rate is not what its counts give"
    if curve.settings is not None and facts.after != curve.settings.rule.config:
        yield "calibration: it gave another rule than the one that was evaluated"


def _close(one: Any, other: Any, most: float = 1e-9) -> bool:
    """Whether plain data agree, numbers up to rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_close(one[k], other[k], most) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(
            _close(*pair, most) for pair in zip(one, other, strict=True)
        )
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=most, abs_tol=most)
    return bool(one == other)


def _budget_problems(curve: RobustnessCurve) -> Iterator[str]:
    """A named budget must have run its stages; only this engine knows its own."""
    settings, provenance = curve.settings, curve.provenance
    if settings is None or provenance is None or provenance.engine != REVISION:
        return
    if settings.budget not in BUDGETS:
        return
    try:
        rule = rule_from_config(settings.rule.config)
    except (LookupError, ValueError):
        return  # the rule's code is not here; the model cannot be loaded either
    wanted = [stage_text(s) for s in BUDGETS[settings.budget].stages(rule, settings.eps)]
    if missing := sum(text not in settings.stages for text in wanted):
        yield f"budget {settings.budget}: {missing} of its {len(wanted)} stages were not run"


def load_recorded(
    curve: RobustnessCurve, folder: str | Path = ".", *, address: str | None = None, **options: Any
) -> SelectiveClassifier:
    """Load the model of a result, with the recorded rule.

    Args:
        curve: The result.
        folder: Where it was read; code in that folder is never run.
        address: The address of the model, if not the recorded one.
        **options: As for `cpr_wrap.load`.
    """
    from cpr_wrap.zoo import load_network, wrap

    about, settings = curve.about, curve.settings
    if not (address or about.model) or settings is None:
        raise ValueError("the result does not say which model it is about; pass the model itself")
    for module in about.imports:
        import_module(trusted(module, Path(folder)))
    if settings.rule.name not in RULES and settings.rule.address:
        find_rule(trusted(settings.rule.address, Path(folder)))
    if about.network and not options.get("network"):
        own = ":" in about.network
        options["network"] = trusted(about.network, Path(folder)) if own else about.network
    device = options.pop("device", None)
    found = load_network(address or about.model, **options)
    rule = rule_from_config(settings.rule.config)
    if rule.modules():
        if found.rule is None or found.rule.name != rule.name:
            raise ValueError(
                f"rule {rule.name!r} has networks of its own, and {found.address} was saved "
                "without them; pass the model, or the address of one saved with its rule"
            )
        rule = rule_from_config(settings.rule.config, found.rule.modules())
    return wrap(found, rule, device=device)
