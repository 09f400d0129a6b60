"""Many evaluations in one process: each has its result folder, and those that are done are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cpr_wrap.data.images import ImageData
from cpr_wrap.engine import ranks
from cpr_wrap.engine.stages import REVISION
from cpr_wrap.engine.store import weights_digest
from cpr_wrap.evaluation.assemble import images_digest, rule_facts
from cpr_wrap.evaluation.auditing import audit
from cpr_wrap.evaluation.curve import robustness_curve
from cpr_wrap.evaluation.estimate import Estimate, estimate_cost
from cpr_wrap.evaluation.result import RESULT, load_result, save_result
from cpr_wrap.metrics import About, CalibrationFacts, RobustnessCurve
from cpr_wrap.selective import SelectiveClassifier


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepRun:
    """One evaluation of a sweep.

    Attributes:
        about: Its name, which names its folder too, and where model and images came from.
        model: The selective classifier; runs may share their network.
        data: The images.
        eps: Budget of the adversary.
        norm: Its norm.
        budget: Name of the budget of attacks.
        calibration: How the rule was calibrated.
    """

    about: About
    model: SelectiveClassifier
    data: ImageData
    eps: float
    norm: str
    budget: str
    calibration: CalibrationFacts | None = None

    def estimate(self, batch_size: int | None = None, *, audited: bool = False) -> Estimate:
        """What this run will cost, with or without an audit."""
        return estimate_cost(
            self.model,
            self.data.images,
            self.data.labels,
            self.eps,
            budget=self.budget,
            batch_size=batch_size,
            norm=self.norm,
            audited=audited,
        )


def sweep(
    runs: Sequence[SweepRun],
    out: str | Path,
    *,
    audited: bool = False,
    seed: int = 0,
    batch_size: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[RobustnessCurve]:
    """Evaluate one run after the other, on all ranks of `torch.distributed` where there are any.

    Stopped, the same call goes on: a finished run is read from its folder, the one that was under
    way resumes from its store.

    Args:
        runs: The runs, with different names.
        out: The folder of their result folders.
        audited: Whether to audit every run.
        seed: Of all random starts.
        batch_size: Rows in a batch; found from free memory if left out.
        tell: Is told what is being done.

    Returns:
        The curves in the order of the runs.
    """
    names = [run.about.name for run in runs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(
            f"expected runs with different names, got {', '.join(sorted(twice))} twice"
        )
    curves = []
    for number, run in enumerate(runs, 1):
        folder = Path(out) / run.about.name
        done = _finished(run, folder, audited=audited, seed=seed)
        if tell is not None:
            tell(f"{number} of {len(runs)}: {run.about.name}{', done before' if done else ''}")
        curves.append(done or _evaluate(run, folder, audited, seed, batch_size))
    return curves


def _finished(run: SweepRun, folder: Path, *, audited: bool, seed: int) -> RobustnessCurve | None:
    """What the folder holds, if it is this very run; another one is refused."""
    if not (folder / RESULT).exists():
        return None
    curve = load_result(folder, points=False)
    settings, made = curve.settings, curve.provenance
    if settings is None or made is None:
        theirs = None
    else:
        theirs = (
            *(curve.eps, curve.records.norm, settings.budget, settings.seed, settings.rule.config),
            *(made.data, made.weights, made.engine),
        )
    data = run.data
    ours = (
        *(run.eps, run.norm, run.budget, seed, rule_facts(run.model.rule).config),
        images_digest(data.images, data.labels, data.indices),
        *(weights_digest(run.model), REVISION),
    )
    if theirs != ours:
        raise ValueError(
            f"{folder} holds another run (other images, weights, settings or engine); choose "
            "another folder, or remove that one"
        )
    return curve if curve.checks is not None or not audited else None


def _evaluate(
    run: SweepRun, folder: Path, audited: bool, seed: int, batch_size: int | None
) -> RobustnessCurve:
    curve = robustness_curve(
        run.model,
        run.data.images,
        run.data.labels,
        run.eps,
        budget=run.budget,
        seed=seed,
        batch_size=batch_size,
        store=folder / "store",
        norm=run.norm,
        indices=run.data.indices.tolist(),
        progress=True,
    )
    curve = replace(curve, about=run.about, calibration=run.calibration)
    if ranks.rank() == 0:
        if audited:
            curve = replace(curve, checks=audit(run.model, curve, seed=seed))
        save_result(curve, folder)
    return curve
