"""The evidence behind a curve: points, origins, costs, settings, provenance, checks.

Everything here is plain data. `Points` holds tensors; all the rest can be written as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

NO_TARGET = -1
"""The target of an attack that aims at no class."""
DONOR, NEAR_MISS = -2, -3
"""The starts of restarts from a donor and from a near miss."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a point was found."""

    attack: str  #: Name of the attack.
    #: 0 the image, n the n-th random start, -1 a known point, -2 a donor, -3 a near miss.
    start: int = 0
    alpha: float = 1.0  #: The radius it was searched in, as a share of eps.
    target: int = NO_TARGET  #: The class it aimed at, -1 for none.
    run: str = ""  #: The run it was taken from; empty if this run found it.


@dataclass(frozen=True, kw_only=True)
class Origins:
    """How the points of one image were found; None if there is no point."""

    outer: Origin | None = None
    rejected: Origin | None = None
    boundary: Origin | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """The images and the points found for them, on the CPU, `(N, ...)` each."""

    clean: Tensor  #: The images.
    outer: Tensor  #: Accepted mistakes; the image itself where none was found.
    rejected: Tensor  #: Nearest rejected points; the image itself where none was found.


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """What one stage of an evaluation cost and changed."""

    attack: str  #: Name of the stage.
    forwards: int  #: Forward passes.
    backwards: int  #: Backward passes.
    seconds: float = 0.0  #: Time over all sessions and processes.
    found_outer: int = 0  #: Images whose nearest accepted mistake it found.
    found_rejected: int = 0  #: Images whose nearest rejected point it found.

    @property
    def passes(self) -> int:
        """Forwards and backwards together."""
        return self.forwards + self.backwards


@dataclass(frozen=True, kw_only=True)
class RuleFacts:
    """What a result says about its rejection rule, readable without the rule's code."""

    name: str  #: The registered name.
    settings: dict[str, Any] = field(default_factory=dict)  #: Its settings.
    text: str = ""  #: Rule and settings in one phrase.
    norm: str | None = None  #: The norm of its own ball, or None.
    reach: float = 0.0  #: How far from a point its verdict looks, in pixel units.
    forwards: int = 1  #: Forward passes per verdict.
    backwards: int = 0  #: Backward passes per verdict.
    can_reject: bool = True  #: Whether it ever rejects.
    #: Whether a rejection proves that the boundary is within reach.
    rejects_near_boundary: bool = False
    #: Address of the rule's class, ``module:name``, if it is not part of the package.
    address: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """Name and settings, as `rule_from_config` reads them."""
        return {"name": self.name, **self.settings}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an evaluation was run."""

    budget: str  #: Name of the budget of attacks.
    rule: RuleFacts  #: The rejection rule.
    eps: float  #: Budget of the adversary, in pixel units.
    norm: str  #: Its norm.
    seed: int  #: Seed of all random starts.
    batch_size: int  #: Batch size.
    block_size: int  #: Images per block.
    device: str = "cpu"  #: Kind of device.
    threads: int = 1  #: Threads of torch.
    dtype: str | None = None  #: Precision of searches; None for the model's own.
    compile: bool = False  #: Whether searches ran a compiled network.
    channels_last: bool = False  #: Whether searches ran a network in that memory format.
    stages: tuple[str, ...] = ()  #: The stages in order, as texts.
    donors: str = ""  #: Where donor images came from; empty if no attack uses donors.


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a result comes from."""

    versions: dict[str, str]  #: Versions of cpr_wrap, torch and Python.
    engine: int  #: Revision of the engine.
    weights: str  #: Digest of the network's weights.
    data: str  #: Digest of images, labels and their numbers.
    ranks: int = 1  #: Number of processes.
    seconds: float = 0.0  #: Time over all sessions of this process.
    notes: tuple[str, ...] = ()  #: Remarks, e.g. on a smaller batch after running out of memory.
    merged: tuple[str, ...] = ()  #: Names of the runs that this result was joined from.


@dataclass(frozen=True, kw_only=True)
class About:
    """Name of a run, and where its model and images came from."""

    name: str = ""  #: Name of the run.
    model: str = ""  #: Address of the model.
    network: str = ""  #: Address of the network's class or factory, for bare weights.
    imports: tuple[str, ...] = ()  #: Modules to import before the model can be loaded.
    dataset: str = ""  #: Name of the data set.
    part: str = ""  #: Part of the data set.
    dataset_note: str = ""  #: The loader's remark on the images.
    command: str = ""  #: The command that repeats the run.
    trained_eps: float | None = None  #: The budget the network was trained for, if it is known.
    classes: tuple[str, ...] = ()  #: Names of the classes, if they are known.
    #: Clean figures on the whole test set, if they were measured.
    clean_test: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationFacts:
    """What a calibration measured on validation images."""

    before: dict[str, Any]  #: The rule before calibration, as name and settings.
    after: dict[str, Any]  #: The calibrated rule.
    reject_rate: float  #: The requested share of correctly classified images to reject.
    measured_rate: float  #: The share that is rejected.
    low: float  #: Lower end of the interval of the true rate.
    high: float  #: Upper end.
    num_rejected: int  #: How many correctly classified images are rejected.
    num_correct: int  #: How many images are classified correctly.
    num_images: int  #: How many images there are.
    #: Share of all images that are rejected, whether classified correctly or not.
    overall_rate: float
    reached: bool  #: Whether the requested rate was reached.
    note: str = ""  #: A remark for the reader; may be empty.


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of an audit."""

    name: str  #: What is checked, as a statement.
    passed: bool | None  #: Whether it holds; None if it could not be checked.
    detail: str  #: What was measured.


@dataclass(frozen=True, kw_only=True)
class AblationRow:
    """What one attack does alone."""

    attack: str  #: Name of the attack.
    goal: str  #: What it searches for.
    alpha: float  #: Where its robustness is measured, 0 for mistakes and 1 for rejections.
    #: The robustness that it leaves; for an inner attack, mistakes of all attacks count.
    robustness: float
    lost: tuple[int, ...]  #: Numbers of the images that are errors under this attack.
    found: int  #: Images for which it found a point.
    passes_per_image: float  #: Its cost.


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a longer search found on a sample of the images that were still robust."""

    images: int  #: Images of the sample without an accepted mistake before it.
    broken: int  #: Images for which it found one. They count in the records.
    passes: float  #: Passes per sampled image.

    def describe(self) -> str:
        """One sentence for the reader of a curve."""
        if not self.images:
            return "a longer search had no image of the sample left to attack"
        return (
            f"a longer search ({self.passes:,.0f} passes per image) breaks {self.broken} of "
            f"{self.images} sampled images that were still robust"
        )


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Areas under risk–coverage curves, on clean images and under attack."""

    clean_aurc: float  #: Area under selective risk, clean.
    clean_augrc: float  #: Area under generalized risk, clean.
    attacked_aurc: float  #: Area under selective risk, under attack.
    attacked_augrc: float  #: Area under generalized risk, under attack.
