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
    """How a point was found.

    Attributes:
        attack: Name of the attack.
        start: Its start (0 the image, n the n-th random start, -1 a known point, -2 a donor,
            -3 a near miss).
        alpha: The radius it was searched in, as a share of eps.
        target: The class it aimed at, -1 for none.
        run: The run it was taken from; empty if this run found it.
    """

    attack: str
    start: int = 0
    alpha: float = 1.0
    target: int = NO_TARGET
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class Origins:
    """How the points of one image were found; None if there is no point."""

    outer: Origin | None = None
    rejected: Origin | None = None
    boundary: Origin | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """The images and the points found for them, on the CPU, `(N, ...)` each.

    Attributes:
        clean: The images.
        outer: Accepted mistakes; the image itself where none was found.
        rejected: Nearest rejected points; the image itself where none was found.
    """

    clean: Tensor
    outer: Tensor
    rejected: Tensor


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """What one stage of an evaluation cost and changed.

    Attributes:
        attack: Name of the stage.
        forwards: Forward passes.
        backwards: Backward passes.
        seconds: Time over all sessions and processes.
        found_outer: Images whose nearest accepted mistake it found.
        found_rejected: Images whose nearest rejected point it found.
    """

    attack: str
    forwards: int
    backwards: int
    seconds: float
    found_outer: int
    found_rejected: int

    @property
    def passes(self) -> int:
        """Forwards and backwards together."""
        return self.forwards + self.backwards


@dataclass(frozen=True, kw_only=True)
class RuleFacts:
    """What a result says about its rejection rule, readable without the rule's code.

    Attributes:
        name: The registered name.
        settings: Its settings.
        text: Rule and settings in one phrase.
        norm: The norm of its own ball, or None.
        reach: How far from a point its verdict looks, in pixel units.
        forwards: Forward passes per verdict.
        backwards: Backward passes per verdict.
        can_reject: Whether it ever rejects.
        rejects_near_boundary: Whether a rejection proves that the boundary is within reach.
        address: Address of the rule's class, `module:name`, if it is not part of the package.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    norm: str | None = None
    reach: float = 0.0
    forwards: int = 1
    backwards: int = 0
    can_reject: bool = True
    rejects_near_boundary: bool = False
    address: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """Name and settings, as `rule_from_config` reads them."""
        return {"name": self.name, **self.settings}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an evaluation was run.

    Attributes:
        budget: Name of the budget of attacks.
        rule: The rejection rule.
        eps: Budget of the adversary, in pixel units.
        norm: Its norm.
        seed: Seed of all random starts.
        batch_size: Batch size.
        block_size: Images per block.
        device: Kind of device.
        threads: Threads of torch.
        dtype: Precision of searches; None for the model's own.
        compile: Whether searches ran a compiled network.
        channels_last: Whether searches ran a network in that memory format.
        stages: The stages in order, as texts.
        donors: Where donor images came from; empty if no attack uses donors.
    """

    budget: str
    rule: RuleFacts
    eps: float
    norm: str
    seed: int
    batch_size: int
    block_size: int
    device: str = "cpu"
    threads: int = 1
    dtype: str | None = None
    compile: bool = False
    channels_last: bool = False
    stages: tuple[str, ...] = ()
    donors: str = ""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a result comes from.

    Attributes:
        versions: Versions of cpr_wrap, torch and Python.
        engine: Revision of the engine.
        weights: Digest of the network's weights.
        data: Digest of images, labels and their numbers.
        ranks: Number of processes.
        seconds: Time over all sessions of this process.
        notes: Remarks, e.g. on a smaller batch after running out of memory.
        merged: Names of the runs that this result was joined from.
    """

    versions: dict[str, str]
    engine: int
    weights: str
    data: str
    ranks: int = 1
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class About:
    """Name of a run, and where its model and images came from.

    Attributes:
        name: Name of the run.
        model: Address of the model.
        network: Address of the network's class or factory, for bare weights.
        imports: Modules to import before the model can be loaded.
        dataset: Name of the data set.
        part: Part of the data set.
        dataset_note: The loader's remark on the images.
        command: The command that repeats the run.
        trained_eps: The budget the network was trained for, if it is known.
        classes: Names of the classes, if they are known.
        clean_test: Clean figures on the whole test set, if they were measured.
    """

    name: str = ""
    model: str = ""
    network: str = ""
    imports: tuple[str, ...] = ()
    dataset: str = ""
    part: str = ""
    dataset_note: str = ""
    command: str = ""
    trained_eps: float | None = None
    classes: tuple[str, ...] = ()
    clean_test: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationFacts:
    """What a calibration measured on validation images.

    Attributes:
        before: The rule before calibration, as name and settings.
        after: The calibrated rule.
        reject_rate: The requested share of correctly classified images to reject.
        measured_rate: The share that is rejected.
        low: Lower end of the interval of the true rate.
        high: Upper end.
        num_rejected: How many correctly classified images are rejected.
        num_correct: How many images are classified correctly.
        num_images: How many images there are.
        overall_rate: Share of all images that are rejected, whether classified correctly or not.
        reached: Whether the requested rate was reached.
        note: A remark for the reader; may be empty.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    reject_rate: float
    measured_rate: float
    low: float
    high: float
    num_rejected: int
    num_correct: int
    num_images: int
    overall_rate: float
    reached: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of an audit.

    Attributes:
        name: What is checked, as a statement.
        passed: Whether it holds; None if it could not be checked.
        detail: What was measured.
    """

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class AblationRow:
    """What one attack does alone.

    Attributes:
        attack: Name of the attack.
        goal: What it searches for.
        alpha: Where its robustness is measured: 0 for accepted mistakes, 1 for rejections.
        robustness: The robustness that it leaves; for an inner attack, mistakes of all attacks
            count.
        lost: Numbers of the images that are errors under this attack.
        found: Images for which it found a point.
        passes_per_image: Its cost.
    """

    attack: str
    goal: str
    alpha: float
    robustness: float
    lost: tuple[int, ...]
    found: int
    passes_per_image: float


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a longer search found on a sample of the images that were still robust.

    Attributes:
        images: Images of the sample without an accepted mistake before it.
        broken: Images for which it found one. They count in the records.
        passes: Passes per sampled image.
    """

    images: int
    broken: int
    passes: float

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
    """Areas under risk–coverage curves, on clean images and under attack.

    Attributes:
        clean_aurc: Area under selective risk, clean.
        clean_augrc: Area under generalized risk, clean.
        attacked_aurc: Area under selective risk, under attack.
        attacked_augrc: Area under generalized risk, under attack.
    """

    clean_aurc: float
    clean_augrc: float
    attacked_aurc: float
    attacked_augrc: float
