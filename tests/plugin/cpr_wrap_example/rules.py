"""Two rejection rules: flat class distributions, and a second network that disagrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from cpr_wrap import RejectionRule, register_rule
from cpr_wrap.meter import Passes
from cpr_wrap.networks import build_network
from cpr_wrap.objective import View, confident_mistake, low_score, objective, scored_mistake


def _entropy(logits: Tensor) -> Tensor:
    log_p = logits.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


@objective("HEIA")
def high_entropy(view: View) -> tuple[Tensor, ...]:
    """Flatten the class distribution."""
    return (_entropy(view.logits),)


@register_rule("entropy")
@dataclass(frozen=True, kw_only=True)
class LowEntropy(RejectionRule):
    """Accepts when the negative entropy reaches the threshold."""

    inner = (high_entropy,)
    outer = (confident_mistake,)

    def score(self, view: View) -> Tensor:
        """Negative entropy of the class probabilities, in nats."""
        return -_entropy(view.logits)


@register_rule("ensemble")
@dataclass(frozen=True, kw_only=True)
class Agreement(RejectionRule):
    """Accepts when a second network is about as sure of the prediction.

    Attributes:
        second: The second network.
        architecture: Its name, to build it again when a saved model is loaded.
    """

    inner = (low_score,)
    outer = (scored_mistake,)

    second: nn.Module = field(repr=False, compare=False)
    architecture: str = "lenet-compact"

    @property
    def cost(self) -> Passes:
        """Both networks once."""
        return Passes(2, 0)

    def modules(self) -> Mapping[str, nn.Module]:
        """The second network."""
        return {"second": self.second}

    @classmethod
    def blank_modules(cls, settings: Mapping[str, Any]) -> dict[str, nn.Module]:
        """A second network without weights."""
        name = settings.get("architecture", cls.architecture)
        return {"second": build_network(name).eval()}

    def score(self, view: View) -> Tensor:
        """The second network's probability of the predicted class, less 1."""
        other = view.ask(self.second).softmax(dim=1)
        return other.gather(1, view.predicted[:, None]).squeeze(1) - 1
