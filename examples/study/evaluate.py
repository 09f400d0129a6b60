"""One evaluation of the study: rule set, curve computed or resumed, result folder written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cpr_wrap.attacks.ensemble import BUDGETS, Budget
from cpr_wrap.calibration import calibrate
from cpr_wrap.data import ImageData
from cpr_wrap.evaluation import audit, load_result, robustness_curve, save_result
from cpr_wrap.evaluation.audit import as_rows
from cpr_wrap.evaluation.engine import REVISION
from cpr_wrap.evaluation.store import digest, weights_digest
from cpr_wrap.metrics import accuracy_with_rejection, f1_like, rejection_rate
from cpr_wrap.selective import RejectionRule, SelectiveClassifier, rule_config, rule_from_config
from study.materials import Materials
from study.options import Options

Say = Callable[[str], None]
Facts = dict[str, Any]
Measure = Callable[[SelectiveClassifier, ImageData], Facts]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to evaluate.

    Attributes:
        stage: The stage that wants it.
        method: What it is called in tables.
        address: The network.
        dataset: Whose images.
        eps: The budget of the adversary.
        rule: The rejection rule, before any calibration.
        rate: Share of correctly classified validation images to calibrate it to, or None.
        compare_rate: A rate for which the calibrated radius is only recorded, or None.
        part: Which images are attacked.
        num: How many of them.
        plan: How hard; the options' budget if None.
        ablation: Whether every attack is run alone as well.
        clean: Whether to take the clean figures on many images.
        labels: More to say about the task, for the document.
    """

    stage: str
    method: str
    address: str
    dataset: str
    eps: float
    rule: RejectionRule
    num: int
    rate: float | None = None
    compare_rate: float | None = None
    part: str = "robust"
    plan: Budget | None = None
    ablation: bool = False
    clean: bool = False
    labels: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Where its result goes, below the study's folder."""
        text = "-".join([self.method, *map(str, self.labels.values()), f"eps{self.eps:.4g}"])
        safe = "".join(c if c.isalnum() or c in ".+" else "-" for c in text.lower())
        return f"{self.stage}/{safe}"


@dataclass(frozen=True)
class Bench:
    """Where tasks are worked on.

    Attributes:
        options: What the run is asked to do.
        materials: Networks and images.
        say: Told what happens.
    """

    options: Options
    materials: Materials
    say: Say

    def run(self, task: Task) -> Path:
        """Evaluate a task, unless its folder already holds just that."""
        model = self.materials.model(task.address)
        data = self.materials.images(task.dataset, task.part, task.num)
        wanted = self._identity(task, model, data)
        folder = self.options.out / task.folder
        if _recorded(folder).get("study", {}).get("identity") == wanted:
            self.say(f"{task.folder}: there already")
            return folder
        model, calibration = self._calibrated(task, model)
        started = time.perf_counter()
        curve = robustness_curve(
            model,
            data.images,
            data.labels,
            task.eps,
            budget=task.plan or self.options.budget,
            seed=self.options.seed,
            batch_size=self.options.batch_size,
            block_size=self.options.block_size,
            store=self.options.out / "store",
            norm="Linf",
            indices=data.indices.tolist(),
            ablation=task.ablation,
        )
        extra = {
            "name": task.method,
            "model": task.address,
            "dataset": task.dataset,
            "part": task.part,
            "calibration": calibration,
            "clean_images": self._clean(task, model),
            "audit": None,
            "study": {
                "stage": task.stage,
                "budget": self.options.budget,
                "identity": wanted,
                **task.labels,
            },
        }
        save_result(curve, folder, extra=extra)
        seconds = time.perf_counter() - started
        self.say(
            f"{task.folder}: {len(data)} images in {seconds:.0f} s, robustness "
            f"{curve.accuracy_at(0.0):.3f} at alpha 0, {curve.accuracy_at(1.0):.3f} at alpha 1"
        )
        return folder

    def audit(self, task: Task) -> None:
        """Audit a result that is there and was not audited yet."""
        folder = self.options.out / task.folder
        content = _recorded(folder)
        if not content or content.get("audit"):
            return
        curve = load_result(folder)
        model = self.materials.model(task.address)
        # The rule as it was evaluated, not calibrated again.
        model = model.with_rule(rule_from_config(content["settings"]["rule"]))
        data = self.materials.images(task.dataset, task.part, len(curve.records))
        checks = audit(
            model,
            data.images,
            data.labels,
            task.eps,
            curve,
            seed=self.options.seed,
            images=self.options.audit_images,
            black_box_images=self.options.black_box_images,
        )
        content["audit"] = as_rows(checks)
        _write(folder / "result.json", content)
        failed = [check.name for check in checks if check.passed is False]
        self.say(f"{task.folder}: audit {'; '.join(failed) or 'passed'}")

    def rejected_of_validation(self, task: Task) -> Facts:
        """What a rule, as it is, does to the validation images."""
        model = self.materials.model(task.address).with_rule(task.rule)
        return self._remembered(_Rejected(), model, self._validation(task))

    def _identity(self, task: Task, model: SelectiveClassifier, data: ImageData) -> Facts:
        """All that a result depends on, as plain data: the same identity, the same result."""
        options = self.options
        plan = task.plan or BUDGETS[options.budget]
        stages = "\n".join(map(repr, plan.stages(task.rule, task.eps)))
        return {
            "weights": weights_digest(model.base),
            "rule": rule_config(task.rule),
            "rate": task.rate,
            "eps": task.eps,
            "dataset": task.dataset,
            "part": task.part,
            "images": len(data),
            "validation": options.validation if task.rate is not None else 0,
            "plan": plan.name,
            "stages": digest(stages)[:16],
            "engine": REVISION,
            "ablation": task.ablation,
            "clean": options.clean if task.clean else 0,
            "seed": options.seed,
            "block_size": options.block_size,
        }

    def _calibrated(
        self, task: Task, model: SelectiveClassifier
    ) -> tuple[SelectiveClassifier, Facts]:
        """The model under its rule, and what is known about that on validation images."""
        model = model.with_rule(task.rule)
        about: Facts = {"rate": task.rate}
        if not model.rule.can_reject:
            return model, about
        data = self._validation(task)
        for name, rate in (("used", task.rate), ("for_comparison", task.compare_rate)):
            if rate is None:
                continue
            about[name] = self._remembered(_Calibrated(rate), model, data)
            if name == "used":
                model = model.with_rule(rule_from_config(about[name]["rule"]))
        about["validation"] = self._remembered(_Rejected(), model, data)
        return model, about

    def _validation(self, task: Task) -> ImageData:
        return self.materials.images(task.dataset, "validation", self.options.validation)

    def _clean(self, task: Task, model: SelectiveClassifier) -> Facts | None:
        if not task.clean:
            return None
        data = self.materials.images(task.dataset, "clean", self.options.clean)
        return self._remembered(_Answers(), model, data)

    def _remembered(self, measure: Measure, model: SelectiveClassifier, data: ImageData) -> Facts:
        """What was measured of a model on clean images, or is measured now and kept on disk."""
        parts = [repr(measure), weights_digest(model.base), rule_config(model.rule)]
        about = [*parts, data.name, data.part, len(data)]
        file = self.options.out / "clean" / f"{digest(json.dumps(about, sort_keys=True))[:16]}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, measure(model, data))
        return _read(file)


def _read(file: Path) -> Facts:
    content = json.loads(file.read_text())
    assert isinstance(content, dict)
    return content


def _write(file: Path, content: Facts) -> None:
    """Write JSON; the file is there whole or not at all, even after a kill."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    part.replace(file)


def _recorded(folder: Path) -> Facts:
    file = folder / "result.json"
    return _read(file) if file.exists() else {}


@dataclass(frozen=True)
class _Answers:
    """Figures on clean test images."""

    def __call__(self, model: SelectiveClassifier, data: ImageData) -> Facts:
        answers = torch.cat([model.predict(x) for x in data.images.split(256)])
        accepted = answers != -1
        accuracy = accuracy_with_rejection(answers, data.labels) if bool(accepted.any()) else None
        return {
            "images": len(data),
            "first": int(data.indices[0]),
            "last": int(data.indices[-1]),
            "accepted": int(accepted.sum()),
            "correct": int((answers == data.labels).sum()),
            "accuracy_with_rejection": accuracy,
            "rejection_rate": rejection_rate(answers),
            "f1_like": f1_like(answers, data.labels),
        }


@dataclass(frozen=True)
class _Rejected:
    """How many images a model answers right, and what it rejects of them."""

    def __call__(self, model: SelectiveClassifier, data: ImageData) -> Facts:
        correct = rejected = overall = 0
        for x, y in zip(data.images.split(256), data.labels.split(256), strict=True):
            answer = model(x)
            right = answer.predicted == y
            correct += int(right.sum())
            rejected += int((right & ~answer.accepted).sum())
            overall += int((~answer.accepted).sum())
        return {
            "images": len(data),
            "correct": correct,
            "rejected_correct": rejected,
            "rejected": overall,
        }


@dataclass(frozen=True)
class _Calibrated:
    """The rule that rejects a share of the right answers, and how well that worked."""

    rate: float

    def __call__(self, model: SelectiveClassifier, data: ImageData) -> Facts:
        record = calibrate(model, data.images, data.labels, self.rate).record
        return {
            "rule": rule_config(record.after),
            "reject_rate": record.reject_rate,
            "measured_rate": record.measured_rate,
            "num_rejected": record.num_rejected,
            "num_correct": record.num_correct,
            "num_images": record.num_images,
            "interval": [record.interval.low, record.interval.high],
            "reached": record.reached,
            "note": record.note,
        }
