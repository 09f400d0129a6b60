"""What a run of the study is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cpr_wrap.attacks.ensemble import BUDGETS as LIBRARY
from cpr_wrap.attacks.ensemble import Budget
from study.plans import AutoAttackAlone, Backtracking, Beyond, EqualTerms, HighConfidence

STAGES = ("main", "check", "rejections", "ccat", "attacks", "radius", "cifar10", "audit")
BUDGETS = ("quick", "standard")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run, how hard, on how many images, and where to put it.

    Attributes:
        out: Where result folders and finished work go.
        only: The stages to run.
        budget: `quick` or `standard`; also scales the plans of single attacks.
        images: Test images of the main table; the other stages take at most `few`.
        few: Test images of the other stages.
        check: Test images on which the main table is checked with more effort.
        contrast: Images for the naturally trained network.
        clean: Test images for clean figures; all of the paper's 9,000 if they are there.
        validation: Validation images for thresholds, as many as there are.
        audit_images: Images that the audit's searches use.
        black_box_images: Images that the audit's black-box attack uses.
        block_size: Images worked on together: what a longer run can take over from a shorter one.
        batch_size: Rows in a batch.
        seed: Of all random starts.
    """

    out: Path = Path("runs/study")
    only: tuple[str, ...] = STAGES
    budget: str = "standard"
    images: int = 500
    few: int = 100
    check: int = 20
    contrast: int = 10
    clean: int = 9000
    validation: int = 1000
    audit_images: int = 8
    black_box_images: int = 30
    block_size: int = 50
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise ValueError(f"budget: expected {' or '.join(BUDGETS)}, got {self.budget!r}")
        unknown = [stage for stage in self.only if stage not in STAGES]
        if unknown or not self.only:
            raise ValueError(
                f"only: expected stages among {', '.join(STAGES)}, got {', '.join(unknown) or '-'}"
            )
        for name in ("images", "few", "check", "contrast", "clean", "validation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")

    @property
    def quick(self) -> bool:
        """Whether this is a first look."""
        return self.budget == "quick"

    @property
    def few_images(self) -> int:
        """Images of the stages beside the main table."""
        return min(self.images, self.few)

    @property
    def autoattack(self) -> AutoAttackAlone:
        """How networks that never reject are attacked."""
        return AutoAttackAlone(version="small" if self.quick else "standard")

    @property
    def harder(self) -> Budget:
        """What the main table is checked with."""
        return LIBRARY["standard"] if self.quick else Beyond()

    @property
    def high_confidence(self) -> HighConfidence:
        """HCMOA in the comparison on CCAT."""
        return HighConfidence(iterations=20, starts=(0,)) if self.quick else HighConfidence()

    @property
    def backtracking(self) -> Backtracking:
        """CCAT's own attack in that comparison."""
        return Backtracking(iterations=200, restarts=2) if self.quick else Backtracking()

    @property
    def equal_terms(self) -> EqualTerms:
        """The attacks one by one."""
        return EqualTerms(starts=(0,), steps=(1 / 3,)) if self.quick else EqualTerms()
