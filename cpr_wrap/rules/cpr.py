"""Consistent-prediction rejection (CPR): stay silent where a small step changes the prediction."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap._checks import check_positive
from cpr_wrap.objective import (
    Targets,
    View,
    confident_mistake,
    doubt,
    log_prob,
    low_confidence,
    margin,
    objective,
    probability_margin,
)
from cpr_wrap.selective import RejectionRule, SelectiveClassifier, register_rule
from cpr_wrap.solver import PGD, Keep, ascend


@objective("CLCIA", shadow=True)
def low_confidence_twice(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Make the network unsure at z and at T(z)."""
    return (doubt(view.logits), doubt(view.shadow_logits))


@objective("PDIA", targets=Targets.ALL, shadow=True)
def disagreement(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Predict the target at z, and something else at T(z)."""
    return (log_prob(view.logits, target), -log_prob(view.shadow_logits, target))


def _sure_twice(view: View, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
    """Be sure of the target class at z and at T(z)."""
    return (log_prob(view.logits, target), log_prob(view.shadow_logits, target))


consistent_mistake = objective("CHCMOA", targets=Targets.OTHERS, shadow=True)(_sure_twice)
orthogonal_mistake = objective(
    "CHCMOA-orthogonal", targets=Targets.OTHERS, shadow=True, combine="orthogonal"
)(_sure_twice)


@register_rule("cpr")
@dataclass(frozen=True, kw_only=True)
class Consistency(RejectionRule):
    """Accepts when the prediction at T(x) is the prediction at x (Algorithm 1 of the paper).

    T(x) is the last point of a deterministic gradient ascent from x on the cross-entropy of the
    predicted class, inside a ball around x and inside [0, 1]. The score is the predicted class's
    lead at T(x): one number that ranks inputs and is accepted from 0 on.

    Attributes:
        radius: The consistency radius, in pixel units.
        steps: Number of steps m.
        step_size: Length of a step in pixel units.
        norm: `Linf` or `L2`.
        keep: `last` as in the paper's text; `best` (largest loss among x_0 … x_m) as in the
            published code.
    """

    inner = (low_confidence, low_confidence_twice, disagreement)
    outer = (confident_mistake, consistent_mistake)
    extra_outer = (probability_margin, orthogonal_mistake)
    needs_gradient = True

    radius: float = 0.0055
    steps: int = 10
    step_size: float = 0.001
    norm: str = "Linf"
    keep: Keep = "last"

    def __post_init__(self) -> None:
        check_positive(self.radius, "radius")
        reach = self.pgd.steps * self.pgd.step_size
        # 1e-9: ten steps of 0.01 do reach 0.1, whatever float multiplication says.
        if self.radius > reach * (1 + 1e-9):
            warnings.warn(
                f"T(x) cannot reach its radius: {self.steps} steps of {self.step_size:g} cover "
                f"{reach:g}, radius is {self.radius:g}, so that part of it has no effect. Raise "
                "steps or step_size, or lower radius.",
                stacklevel=3,
            )

    @property
    def pgd(self) -> PGD:
        """The ascent that makes T(x)."""
        return PGD(steps=self.steps, step_size=self.step_size, norm=self.norm, keep=self.keep)

    def transform(
        self,
        model: SelectiveClassifier,
        x: Tensor,
        outputs: Tensor | None = None,
        *,
        keep_graph: bool = True,
    ) -> Tensor:
        """T(x).

        Args:
            model: The selective classifier.
            x: Inputs `(N, ...)`.
            outputs: Outputs at `x` with their graph, if the caller has them; `x` must then be the
                leaf they were computed from.
            keep_graph: Whether that graph must be left intact.

        Returns:
            T(x) `(N, ...)`, without graph.
        """
        with torch.inference_mode(False), torch.enable_grad():
            if outputs is None:
                # Inference tensors cannot enter a graph; their clones can.
                x = (x.clone() if x.is_inference() else x).detach().requires_grad_()
                outputs, keep_graph = model.outputs(x), False
            known = outputs
            predicted = known.detach().argmax(dim=1)

            def cross_entropy(z: Tensor) -> Tensor:
                return -log_prob(known if z is x else model.outputs(z), predicted)

            return ascend(cross_entropy, x, self.radius, self.pgd, keep_graph=keep_graph)

    def score(self, model: SelectiveClassifier, x: Tensor, outputs: Tensor) -> Tensor:
        """Lead of the class predicted at x over the best other one, at T(x)."""
        moved = self.transform(model, x, outputs, keep_graph=False)
        with torch.no_grad():
            return _lead(model.outputs(moved), outputs.detach())

    def view(self, model: SelectiveClassifier, z: Tensor, *, shadow: bool = False) -> View:
        """Outputs at z, and at T(z) if asked for: with them the verdict comes free."""
        outputs = model.outputs(z)
        if not shadow:
            return View(outputs, None, None, outputs.shape[1])
        moved = self.transform(model, z, outputs)
        # Straight through: T(z) in the forward pass, the identity's gradient in the backward.
        beyond = model.outputs(z + (moved - z).detach())
        accepted = _lead(beyond.detach(), outputs.detach()) >= self.threshold
        return View(outputs, beyond, accepted, outputs.shape[1])

    def stand_in(self) -> Self:
        """One step straight to the ball's edge instead of many small ones."""
        return replace(self, steps=1, step_size=self.radius, keep="last")


def _lead(beyond: Tensor, outputs: Tensor) -> Tensor:
    """Margin at T(x) of the class predicted at x; negative exactly where the prediction flips."""
    predicted = outputs.argmax(dim=1)
    lead = margin(beyond, predicted)
    # On an exact tie arg max decides, and a class it does not choose must not pass as "lead 0".
    lost_tie = (lead == 0) & (beyond.argmax(dim=1) != predicted)
    return torch.where(lost_tie, -torch.finfo(lead.dtype).tiny, lead)


class CPRWrapper(SelectiveClassifier):
    """Any classifier, made selective by consistent-prediction rejection.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
        >>> model = CPRWrapper(net, radius=0.1, steps=10, step_size=0.02)
        >>> model(torch.rand(2, 1, 2, 2)).labels.shape
        torch.Size([2])
    """

    def __init__(
        self,
        base: nn.Module,
        radius: float = 0.0055,
        steps: int = 10,
        step_size: float = 0.001,
        norm: str = "Linf",
        keep: Keep = "last",
        source: Mapping[str, Any] | None = None,
    ) -> None:
        rule = Consistency(radius=radius, steps=steps, step_size=step_size, norm=norm, keep=keep)
        super().__init__(base, rule, source)
