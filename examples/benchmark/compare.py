"""Yardsticks for the engine: growth with the images, a naive loop, the paper's protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpr_wrap.attacks.paper import Paper
from cpr_wrap.data import ImageData
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.evaluation.benchmark import timed
from cpr_wrap.meter import count_passes
from cpr_wrap.metrics import PAPER_ALPHAS, RobustnessCurve
from cpr_wrap.selective import SelectiveClassifier, network_device
from examples.benchmark.footprint import Footprint, footprint
from examples.benchmark.naive import NaiveLoop


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The same images once and several times over, each in a fresh process.

    Attributes:
        times: How often each image was taken.
        once: What they took.
        often: What they took several times over.
    """

    times: int
    once: Footprint
    often: Footprint

    @property
    def passes(self) -> float:
        """Passes for each copy over the passes for one: 1 if cost grows linearly."""
        return self.often.passes / self.once.passes / self.times

    @property
    def cpu(self) -> float:
        """The same for processor time."""
        return self.often.cpu_seconds / self.once.cpu_seconds / self.times

    @property
    def memory(self) -> float:
        """Working memory at the peak, beyond inputs and results, over that for one copy."""
        return self.often.working / self.once.working


def measure_growth(
    model: SelectiveClassifier,
    data: ImageData,
    eps: float,
    *,
    times: int = 5,
    budget: str = "quick",
    batch_size: int = 128,
) -> Growth:
    """Evaluate images once and several times over.

    A block has as many images as `data`, so that both evaluations work on equal blocks. Copies of
    an image have numbers of their own, so random starts of their own.

    Args:
        model: The selective classifier.
        data: The images.
        eps: Budget of the adversary.
        times: How often they are taken.
        budget: How hard to attack.
        batch_size: Rows in a batch.
    """
    once, often = (
        footprint(
            model,
            data.images,
            data.labels,
            eps,
            times=count,
            budget=budget,
            batch_size=batch_size,
            block_size=len(data),
        )
        for count in (1, times)
    )
    return Growth(times=times, once=once, often=often)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Errors that `standard` and another way found on the same images, and their cost.

    Attributes:
        images: How many images.
        alphas: Where errors were counted.
        ours: Errors of `standard` at each alpha.
        theirs: Errors of the other way.
        outer: Images broken by outer attacks, by ours and by theirs.
        passes_per_image: Ours and theirs.
        seconds: Wall time, ours and theirs.
        cpu_seconds: Processor time, ours and theirs; None for work that came from a store.
    """

    images: int
    alphas: tuple[float, ...]
    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    outer: tuple[int, int]
    passes_per_image: tuple[float, float]
    seconds: tuple[float, float]
    cpu_seconds: tuple[float, float] | None

    @property
    def no_fewer(self) -> bool:
        """Whether we find at least as many errors at every alpha and by outer attacks alone."""
        pairs = [*zip(self.ours, self.theirs, strict=True), self.outer]
        return all(ours >= theirs for ours, theirs in pairs)


def compare_naive(
    model: SelectiveClassifier,
    data: ImageData,
    eps: float,
    *,
    naive: NaiveLoop | None = None,
    batch_size: int = 128,
) -> Comparison:
    """Run `standard`, and the straightforward loop with all images in one batch.

    Args:
        model: The selective classifier, CPR with Linf.
        data: The images.
        eps: Budget of the adversary.
        naive: The straightforward loop; by default with 20 iterations and 1 + 1 starts.
        batch_size: Rows in a batch of ours.
    """
    loop = naive or NaiveLoop()
    x, y = data.images.to(network_device(model.base)), data.labels.to(network_device(model.base))
    curve, ours = timed(lambda: _curve(model, data, eps, batch_size=batch_size), x.device)
    with count_passes() as passes:
        found, theirs = timed(lambda: loop.errors(model, x, y, eps), x.device)
    return Comparison(
        images=len(data),
        alphas=PAPER_ALPHAS,
        ours=_errors(curve),
        theirs=tuple(found.at_alphas.sum(dim=1).tolist()),
        outer=(_broken(curve), int(found.broken.sum())),
        passes_per_image=(curve.passes_per_image, passes.total / len(data)),
        seconds=(float(ours[0]), float(theirs[0])),
        cpu_seconds=(float(ours[1]), float(theirs[1])),
    )


def compare_paper(
    model: SelectiveClassifier,
    data: ImageData,
    eps: float,
    *,
    paper: Paper | None = None,
    **options: Any,
) -> Comparison:
    """Run `standard`, and the paper's protocol in the same engine.

    Args:
        model: The selective classifier.
        data: The images.
        eps: Budget of the adversary.
        paper: The protocol; by default with 20 iterations and 1 + 1 starts.
        **options: As in `robustness_curve`. This takes long; with a `store` and a small
            `block_size` it goes on where it was stopped.
    """
    plan = paper or Paper(steps=20, random_starts=1)
    ours = _curve(model, data, eps, **options)
    theirs = _curve(model, data, eps, budget=plan, **options)
    return Comparison(
        images=len(data),
        alphas=PAPER_ALPHAS,
        ours=_errors(ours),
        theirs=_errors(theirs),
        outer=(_broken(ours), _broken(theirs)),
        passes_per_image=(ours.passes_per_image, theirs.passes_per_image),
        seconds=(_seconds(ours), _seconds(theirs)),
        cpu_seconds=None,
    )


def _curve(
    model: SelectiveClassifier, data: ImageData, eps: float, **options: Any
) -> RobustnessCurve:
    numbers = data.indices.tolist()
    return robustness_curve(model, data.images, data.labels, eps, indices=numbers, **options)


def _errors(curve: RobustnessCurve) -> tuple[int, ...]:
    return tuple(round(curve.error_at(alpha) * len(curve.records)) for alpha in PAPER_ALPHAS)


def _broken(curve: RobustnessCurve) -> int:
    return int(curve.records.outer_broken.sum())


def _seconds(curve: RobustnessCurve) -> float:
    """Time of all units; the time of a run that was resumed would say nothing."""
    return sum(stage.seconds for stage in curve.passes)
