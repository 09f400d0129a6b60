"""The evaluation as one would first write it: a yardstick for the engine, not for use.

One climb after another, for every attack, alpha, target and start; gradients of everything, by
`loss.backward()`; T(z) from scratch at every point; no image leaves before the end.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cpr_wrap.metrics import PAPER_ALPHAS
from cpr_wrap.objective import Aim, Objective, Targets, View
from cpr_wrap.rules import Consistency
from cpr_wrap.selective import SelectiveClassifier

_MOMENTUM = 0.9


class Errors(NamedTuple):
    """What the loop found.

    Attributes:
        broken: Images with an accepted mistake `(N,)`.
        at_alphas: Images that are errors at each alpha `(A, N)`.
    """

    broken: Tensor
    at_alphas: Tensor


@dataclass(frozen=True, kw_only=True)
class NaiveLoop:
    """A straightforward evaluation of CPR under Linf, with the objectives that the engine uses.

    Attributes:
        steps: Steps of each restart.
        random_starts: Random starts beside the start at zero.
        step: Step size as a share of eps, whatever the alpha.
        seed: Of the random starts.
    """

    steps: int = 20
    random_starts: int = 1
    step: float = 1 / 3
    seed: int = 0

    def errors(
        self,
        model: SelectiveClassifier,
        x: Tensor,
        y: Tensor,
        eps: float,
        alphas: Sequence[float] = PAPER_ALPHAS,
    ) -> Errors:
        """Find errors.

        Args:
            model: The selective classifier. It is left alone: a copy is attacked.
            x: Images `(N, ...)`.
            y: True classes `(N,)`.
            eps: Budget in pixel units.
            alphas: Shares of eps, in ascending order.
        """
        if not isinstance(model.rule, Consistency) or model.rule.norm != "Linf":
            raise ValueError(f"rule: expected CPR with norm Linf, got {model.rule}")
        model = copy.deepcopy(model)
        random = torch.Generator().manual_seed(self.seed)
        predicted, accepted = _judge(model, x)
        broken, rejected = accepted & (predicted != y), ~accepted
        for objective in model.rule.outer:
            for z in self._climbs(model, objective, x, y, eps, eps, random):
                predicted, accepted = _judge(model, z)
                broken = broken | (accepted & (predicted != y))
        errors = []
        for alpha in alphas:
            for objective in model.rule.inner if alpha > 0 else ():
                for z in self._climbs(model, objective, x, y, alpha * eps, eps, random):
                    rejected = rejected | ~_judge(model, z)[1]
            errors.append(broken | rejected)
        return Errors(broken, torch.stack(errors))

    def _climbs(
        self,
        model: SelectiveClassifier,
        objective: Objective,
        x: Tensor,
        y: Tensor,
        radius: float,
        eps: float,
        random: torch.Generator,
    ) -> Iterator[Tensor]:
        """The best point an image of each target and start, by the objective's value."""
        num_classes = model.outputs(x).shape[1]
        for target in _targets(objective, y, num_classes):
            for start in range(self.random_starts + 1):
                cube = 2 * torch.rand(x.shape, generator=random) - 1
                offset = radius * cube.to(x) if start > 0 else torch.zeros_like(x)
                z = best = _project(x + offset, x, radius)
                best_value = torch.full(y.shape, -torch.inf).to(x)
                velocity = torch.zeros_like(x)
                for _ in range(self.steps):
                    value, gradient = _differentiate(model, objective, z, y, target)
                    better = value > best_value
                    best_value = torch.where(better, value, best_value)
                    best = torch.where(better.view(-1, *[1] * (x.dim() - 1)), z, best)
                    velocity = _MOMENTUM * velocity + (1 - _MOMENTUM) * gradient.sign()
                    z = _project(z + self.step * eps * velocity, x, radius)
                yield best


def _targets(objective: Objective, y: Tensor, num_classes: int) -> list[Tensor]:
    if objective.targets is Targets.NONE:
        return [y]
    first = 0 if objective.targets is Targets.ALL else 1
    return [(y + shift) % num_classes for shift in range(first, num_classes)]


def _differentiate(
    model: SelectiveClassifier, objective: Objective, z: Tensor, y: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Value `(N,)` and gradient `(N, ...)` of an objective at points."""
    z = z.detach().requires_grad_()
    outputs = model.outputs(z)
    path = ()
    if objective.path:
        path = (model.outputs(z + (_transform(model, z) - z).detach()),)
    aim = Aim(y, target)
    view = View(z=z, outputs=outputs, num_classes=outputs.shape[1], path=path, aim=aim)
    terms = objective.terms(view)
    value = torch.stack(terms).sum(dim=0)
    value.sum().backward()
    assert z.grad is not None
    return value.detach(), z.grad


def _transform(model: SelectiveClassifier, x: Tensor) -> Tensor:
    """T(x), by Algorithm 1 of the paper."""
    rule = model.rule
    assert isinstance(rule, Consistency)
    x = x.detach()
    predicted = model.outputs(x).argmax(dim=1)
    z = x
    for _ in range(rule.steps):
        z = z.detach().requires_grad_()
        F.cross_entropy(model.outputs(z), predicted, reduction="sum").backward()
        assert z.grad is not None
        z = _project(z + rule.pgd.step_size * z.grad.sign(), x, rule.radius)
    return z


def _judge(model: SelectiveClassifier, x: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions `(N,)`, and whether they are accepted `(N,)`."""
    predicted = model.outputs(x).argmax(dim=1)
    return predicted, model.outputs(_transform(model, x)).argmax(dim=1) == predicted


def _project(z: Tensor, x: Tensor, radius: float) -> Tensor:
    return torch.minimum(torch.maximum(z.detach(), x - radius), x + radius).clamp(0, 1)
