"""Evaluations as tasks: what one will cost, and result folders of one or many in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from cpr_wrap.attacks.adaptive import GivenPoints, as_stage
from cpr_wrap.attacks.ensemble import Budget, Listed
from cpr_wrap.calibration import CalibrationRecord
from cpr_wrap.data.images import ImageData
from cpr_wrap.engine import ranks
from cpr_wrap.engine.evaluate import InRounds, stage_text
from cpr_wrap.engine.progress import busy
from cpr_wrap.engine.stages import REVISION
from cpr_wrap.engine.store import weights_digest
from cpr_wrap.evaluation.assemble import images_digest, rule_facts
from cpr_wrap.evaluation.auditing import audit
from cpr_wrap.evaluation.curve import robustness_curve
from cpr_wrap.evaluation.result import RESULT, load_result, save_result
from cpr_wrap.meter import Passes, count_passes
from cpr_wrap.metrics import About, RobustnessCurve
from cpr_wrap.selective import SelectiveClassifier

NO_ATTACKS = Listed(name="none")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated cost of a run."""

    images: int  #: Images in the run.
    probed: int  #: Images in the probe.
    passes_per_image: float  #: Measured on the probe.
    passes: float  #: Expected for the run.
    seconds: float  #: Expected for the run, at the probe's speed.
    audit_passes: float = 0.0  #: Passes of the audit among them; 0 without an audit.


def estimate_cost(
    model: SelectiveClassifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    budget: str | Budget = "standard",
    num: int | None = None,
    probe: int = 8,
    batch_size: int | None = None,
    norm: str | None = None,
    extras: Iterable[Any] = (),
    audited: bool = False,
) -> Estimate:
    """Estimate the cost of an evaluation from a few images.

    Small batches are slower per pass than full ones, so the time is more likely overestimated.

    Args:
        model: The selective classifier.
        x: Images `(N, ...)`, at least `probe` of them.
        y: True classes `(N,)`.
        eps: Budget of the adversary.
        budget: As in `robustness_curve`.
        num: Number of images in the run; all of `x` by default.
        probe: Number of images to evaluate.
        batch_size: As in `robustness_curve`.
        norm: As in `robustness_curve`.
        extras: As in `robustness_curve`.
        audited: Whether the run will be audited. An audit mostly uses a fixed number of images, so
            its cost on the probe is added without scaling.

    Example:
        >>> import torch
        >>> from cpr_wrap import Confidence, SelectiveClassifier
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
        >>> model = SelectiveClassifier(network, Confidence(threshold=0.6))
        >>> x = torch.rand(2, 1, 2, 2)
        >>> cost = estimate_cost(model, x, network(x).argmax(dim=1), 0.05, budget="quick", num=1000)
        >>> cost.images, cost.probed, cost.passes == 1000 * cost.passes_per_image
        (1000, 2, True)
    """
    options: dict[str, Any] = {"batch_size": batch_size, "norm": norm, "extras": extras}
    curve = robustness_curve(model, x[:probe], y[:probe], eps, budget=budget, **options)
    count, probed = len(x) if num is None else num, len(curve.records)
    seconds = sum(stage.seconds for stage in curve.passes)
    extra, spent = 0.0, Passes()
    if audited:
        began = time.perf_counter()
        with count_passes() as spent:
            audit(model, curve)
        extra = time.perf_counter() - began
    return Estimate(
        images=count,
        probed=probed,
        passes_per_image=curve.passes_per_image,
        passes=curve.passes_per_image * count + spent.total,
        seconds=seconds / probed * count + extra,
        audit_passes=float(spent.total),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One evaluation: what of (tasks may share their network), on which images, and how hard."""

    about: About
    model: SelectiveClassifier
    data: ImageData
    eps: float
    norm: str
    budget: Budget = NO_ATTACKS
    extras: Sequence[Any] = ()
    calibration: CalibrationRecord | None = None

    @property
    def _subject(self) -> tuple[SelectiveClassifier, Tensor, Tensor, float]:
        return self.model, self.data.images, self.data.labels, self.eps

    @property
    def _attacks(self) -> dict[str, Any]:
        return {"budget": self.budget, "extras": self.extras, "norm": self.norm}

    def estimate(self, batch_size: int | None = None, *, audited: bool) -> Estimate:
        """What it will cost, with or without an audit."""
        options = {**self._attacks, "batch_size": batch_size, "audited": audited}
        return estimate_cost(*self._subject, **options)

    def evaluate(self, *, audited: bool, seed: int = 0, **options: Any) -> RobustnessCurve:
        """Evaluate with a bar, and audit if wanted, which the first process does."""
        options |= {"seed": seed, "indices": self.data.indices.tolist(), "progress": True}
        found = robustness_curve(*self._subject, **{**self._attacks, **options})
        calibration = None if self.calibration is None else self.calibration.facts
        found = replace(found, about=self.about, calibration=calibration)
        leads = ranks.rank() == 0
        with busy("auditing") if audited and leads else nullcontext():
            checks = audit(self.model, found, seed=seed) if audited and leads else None
        return replace(found, checks=checks)

    def held_by(
        self, folder: str | Path, seed: int = 0, *, overwrite: bool = False
    ) -> RobustnessCurve | None:
        """What a folder holds of this very task, without its points; another run is refused."""
        if not (Path(folder) / RESULT).exists():
            return None
        found = load_result(folder, points=False)
        if self._made(found, seed):
            return found
        if not overwrite:
            raise FileExistsError(
                f"{folder} holds another run, {found.about.name or 'without a name'} (other "
                "images, weights, settings or engine); choose another folder, or overwrite it "
                "(--overwrite)"
            )
        return None

    def _made(self, found: RobustnessCurve, seed: int) -> bool:
        """Whether a curve came from this very task."""
        settings, made, data = found.settings, found.provenance, self.data
        if settings is None or made is None:
            return False
        rule = self.model.rule
        ours = (
            *(self.eps, self.norm, self.budget.name, seed, rule_facts(rule).config),
            images_digest(data.images, data.labels, data.indices),
            *(weights_digest(self.model), REVISION),
        )
        theirs = (
            *(found.eps, found.records.norm, settings.budget, settings.seed, settings.rule.config),
            *(made.data, made.weights, made.engine),
        )
        stages = [*self.budget.stages(rule, self.eps), *map(as_stage, self.extras)]
        wanted = [stage_text(stage) for stage in stages]
        # Points that were given come before, and the rounds of a budget after.
        ran = [text for text in settings.stages if not text.startswith(GivenPoints.__name__)]
        ran = ran[: len(wanted)] if isinstance(self.budget, InRounds) else ran
        return ours == theirs and wanted == ran


def sweep(
    tasks: Sequence[Task],
    out: str | Path,
    *,
    audited: bool = False,
    seed: int = 0,
    batch_size: int | None = None,
    overwrite: bool = False,
    tell: Callable[[str], None] | None = None,
) -> list[RobustnessCurve]:
    """Evaluate one task after the other, on all ranks of `torch.distributed` where there are any.

    The same call resumes a stopped sweep: finished runs are read from their folders, and the one
    that was running resumes from its store. Names of tasks, all different, are those of their
    folders in `out` too; `overwrite` lets folders be replaced that hold other runs.
    """
    names = [task.about.name for task in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"expected runs with different names, got {', '.join(twice)} twice")
    folders = [Path(out) / name for name in names]
    # All of them first: a folder that holds another run is found before any work.
    held = [
        task.held_by(folder, seed, overwrite=overwrite)
        for task, folder in zip(tasks, folders, strict=True)
    ]
    found = []
    for number, (task, folder, done) in enumerate(zip(tasks, folders, held, strict=True), 1):
        kept = done if done is not None and (done.checks is not None or not audited) else None
        if tell is not None:
            tell(f"{number} of {len(tasks)}: {task.about.name}{', done before' if kept else ''}")
        if kept is None:
            store = folder / "store"
            kept = task.evaluate(audited=audited, seed=seed, batch_size=batch_size, store=store)
            if ranks.rank() == 0:
                save_result(kept, folder)
        found.append(kept)
    return found
