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
        why: The rule's reason.
    """

    label: int
    predicted: int
    probability: float
    rule: str
    score: float
    threshold: float
    why: str

    def sentence(self, names: Sequence[str] | None = None) -> str:
        """The answer in words.

        Args:
            names: Names of the classes, in order.
        """
        name = str(self.predicted) if names is None else names[self.predicted]
        if self.label >= 0:
            return f"{name}\tprobability {self.probability:.3f}"
        return f"REJECT\twould be {name} (probability {self.probability:.3f}), but {self.why}"


def explain(
    model: SelectiveClassifier, x: Tensor, names: Sequence[str] | None = None
) -> list[Answer]:
    """Ask a model about images, and the rule for its reasons.

    Args:
        model: The selective classifier.
        x: Images `(N, ...)` in [0, 1].
        names: Names of the classes, in order.
    """
    selection = model(x)
    view = model.look(x)
    name = str if names is None else names.__getitem__
    columns = zip(
        selection.labels.tolist(),
        selection.predicted.tolist(),
        selection.logits.softmax(dim=1).amax(dim=1).tolist(),
        selection.score.tolist(),
        model.rule.explain(view, name),
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
            why=why,
        )
        for label, predicted, probability, score, why in columns
    ]
