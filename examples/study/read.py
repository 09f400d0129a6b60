"""Reads published result folders: everything that the document says comes from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cpr_wrap.evaluation import load_result
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report import Run
from study import paper

DATASETS: Mapping[str, Mapping[str, float]] = {"main": paper.EPS, "cifar10": paper.CIFAR10_EPS}


@dataclass(frozen=True)
class Result:
    """One result folder.

    Attributes:
        curve: Its curve; `details` holds result.json.
        folder: Where it was read from.
    """

    curve: RobustnessCurve
    folder: Path

    @property
    def details(self) -> Mapping[str, Any]:
        """What result.json says."""
        return self.curve.details

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.details["name"])

    @property
    def on_mnist(self) -> bool:
        """Whether its images are MNIST's, and the paper's figures for MNIST may stand beside it."""
        return bool(self.details["dataset"] == "mnist")

    @property
    def where(self) -> str:
        """The method, and the data set if that is not MNIST."""
        return self.method if self.on_mnist else f"{self.method}, CIFAR-10"

    @property
    def images(self) -> int:
        """How many images were attacked."""
        return len(self.curve.records)

    def has_eps(self, eps: float) -> bool:
        """Whether this is the adversary's budget."""
        return abs(self.curve.eps - eps) < 1e-6

    @property
    def plan(self) -> str:
        """How hard."""
        return str(self.details["settings"]["budget"])

    @property
    def study(self) -> Mapping[str, Any]:
        """What the study noted."""
        study = self.details["study"]
        assert isinstance(study, Mapping)
        return study

    @property
    def rule(self) -> Mapping[str, Any]:
        """The rejection rule."""
        rule = self.details["settings"]["rule"]
        assert isinstance(rule, Mapping)
        return rule

    @property
    def run(self) -> Run:
        """For tables and figures of the library."""
        return Run(curve=self.curve, name=self.method)


@dataclass(frozen=True)
class Results:
    """All result folders of a study.

    Attributes:
        root: The folder with one folder a stage.
    """

    root: Path

    @cached_property
    def stages(self) -> Mapping[str, list[Result]]:
        """Results by stage, in the order of their folders' names."""
        found: dict[str, list[Result]] = {}
        for file in sorted(self.root.glob("*/*/result.json")):
            result = Result(load_result(file.parent), file.parent)
            found.setdefault(file.parent.parent.name, []).append(result)
        return found

    def of(self, stage: str) -> list[Result]:
        """The results of a stage."""
        return list(self.stages.get(stage, []))

    def table(self, budget: str, stage: str = "main") -> dict[str, Result]:
        """The main table's (or CIFAR-10's) results under one budget, by method."""
        eps = DATASETS[stage][budget]
        return {r.method: r for r in self.of(stage) if r.has_eps(eps)}
