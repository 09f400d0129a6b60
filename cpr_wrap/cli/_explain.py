"""Why a selective classifier rejects an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from cpr_wrap.selective import SelectiveClassifier


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model says about one image.

    Attributes:
        label: The class, -1 where rejected.
        predicted: The class, rejected or not.
        probability: The softmax probability of that class.
        rule: Name of the rule.
        score: The rule's score; for cpr the lead of the predicted class at T(x), in logits.
        threshold: Where the rule accepts.
        flips_to: The class predicted at T(x); None for rules without T.
    """

    label: int
    predicted: int
    probability: float
    rule: str
    score: float
    threshold: float
    flips_to: int | None

    def sentence(self, names: Sequence[str] | None = None) -> str:
        """The answer in words.

        Args:
            names: Names of the classes, in order.
        """

        def name(label: int) -> str:
            return str(label) if names is None else names[label]

        if self.label >= 0:
            return f"{name(self.label)}\tprobability {self.probability:.3f}"
        would_be = f"would be {name(self.predicted)} (probability {self.probability:.3f})"
        if self.flips_to is not None:
            return (
                f"REJECT\t{would_be}, but flips to {name(self.flips_to)} at T(x), which leads "
                f"there by {-self.score:.3g}"
            )
        return (
            f"REJECT\t{would_be}, but {self.rule} score {self.score:.4g} is below "
            f"{self.threshold:.4g}"
        )


def explain(model: SelectiveClassifier, x: Tensor) -> list[Answer]:
    """Ask a model about images, and for rejections ask why.

    Args:
        model: The selective classifier.
        x: Images `(N, ...)` in [0, 1].
    """
    import torch

    from cpr_wrap.rules import Consistency

    selection = model(x)
    flips: list[int | None] = [None] * len(x)
    if isinstance(model.rule, Consistency):
        moved = model.rule.transform(model, x)
        with torch.no_grad():
            flips = model.logits(moved).argmax(dim=1).tolist()
    columns = zip(
        selection.labels.tolist(),
        selection.predicted.tolist(),
        selection.logits.softmax(dim=1).amax(dim=1).tolist(),
        selection.score.tolist(),
        flips,
        strict=True,
    )
    return [
        Answer(
            label=label,
            predicted=predicted,
            probability=probability,
            rule=model.rule.name,
            score=score,
            threshold=model.rule.threshold,
            flips_to=flip,
        )
        for label, predicted, probability, score, flip in columns
    ]
