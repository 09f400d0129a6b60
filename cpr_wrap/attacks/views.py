"""A selective classifier as other packages want to see models: columns whose largest decides.

Every view is exact: its arg max tells what the selective classifier answers. And every view can be
differentiated: what depends on T(z) carries the straight-through gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpr_wrap.objective import margin
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.solver import frozen

# How far the column that must be the largest stands above the rest, at least.
_LEAD = 0.01


def log_odds(logits: Tensor) -> Tensor:
    """Logarithm of p / (1 - p) for every class, `(N, k)` to `(N, k)`.

    Ordered like the logits, blind to a shift of all of them, and, unlike log-probabilities, with
    a gradient that does not fade where the network is sure.
    """
    top = logits.argmax(dim=1, keepdim=True)
    rest = logits.scatter(1, top, -torch.inf).logsumexp(dim=1, keepdim=True)
    # Only the top class can be so likely that 1 - p is lost to rounding: it is done apart.
    log_p = logits.log_softmax(dim=1).scatter(1, top, -1.0)
    odds = log_p - torch.log1p(-log_p.exp())
    return odds.scatter(1, top, logits.gather(1, top) - rest)


def squash(value: Tensor) -> Tensor:
    """Map the real line into (-1, 1), order and sign kept."""
    return value / (1 + value.abs())


class Answer(NamedTuple):
    """What the selective classifier says about points z, with graph.

    Attributes:
        logits: Class logits at z `(N, k)`.
        shadow: Class logits at T(z) `(N, k)`, or None where the rule has no T.
        accepted: Verdicts `(N,)`.
        slack: How far the score is above the threshold `(N,)`.
    """

    logits: Tensor
    shadow: Tensor | None
    accepted: Tensor
    slack: Tensor

    @property
    def predicted(self) -> Tensor:
        """Predicted classes, rejected or not `(N,)`."""
        return self.logits.argmax(dim=1)


def ask(model: SelectiveClassifier, z: Tensor) -> Answer:
    """Ask about points `(N, ...)` that require a gradient."""
    rule = model.rule
    view = rule.view(model, z, shadow=True)
    if view.shadow is None:
        shadow, score = None, rule.score(model, z, view.outputs)
    else:
        shadow = view.shadow_logits
        score = margin(shadow, view.predicted)
    accepted = model.judge(z).accepted if view.accepted is None else view.accepted
    return Answer(view.logits, shadow, accepted, score - rule.threshold)


class _View(nn.Module):
    """Columns for other packages; what they do to a view does not reach the model.

    The model is kept out of the module tree, so that `.to()` or `.train()` of a view leave it
    alone, and its parameters take no part in the graph, so that `backward()` leaves them alone.
    """

    def __init__(self, model: SelectiveClassifier, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._held = (model,)
        self._dtype = dtype
        self.training = False

    @property
    def model(self) -> SelectiveClassifier:
        """The selective classifier behind the columns."""
        return self._held[0]

    @abstractmethod
    def columns(self, z: Tensor) -> Tensor:
        """The columns at points that require a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Columns for points `(N, ...)`; with graph where `x` has one and gradients are on.

        Points come in whatever type the package works in, and the model gets its images' own.
        """
        wanted = x.requires_grad and torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad(), frozen(self.model):
            z = x if wanted else x.detach().clone().requires_grad_()
            columns = self.columns(z if self._dtype is None else z.to(self._dtype)).to(x.dtype)
        return columns if wanted else columns.detach()


class BaseLogits(_View):
    """The k class logits of the network, blind to rejection."""

    def columns(self, z: Tensor) -> Tensor:
        """Class logits `(N, k)`."""
        return self.model.logits(z)


class GoalLogits(_View):
    """k columns for images of one true class: its column is the largest until the goal is reached.

    The goal is *accepted and wrong*. A rejected point shows the true class, whatever the network
    predicts there, so that a package which counts misclassifications counts our goal and nothing
    else. There is no reject column to aim at.

    The lead of the true class says how far the goal is, in three stages, each below the one before:

    1. predicted right: 1 + the true class's lead in log-odds at z;
    2. wrong and rejected: between 0 and 1, by what the score lacks to be accepted;
    3. accepted and wrong: negative.

    So crossing the network's boundary always counts as progress. It would not if outputs at z and
    at T(z) were simply added: just behind the boundary T(z) points back, and the sum drops.
    """

    def __init__(
        self, model: SelectiveClassifier, label: int, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(model, dtype)
        self.label = label

    def columns(self, z: Tensor) -> Tensor:
        """The true class's lead in its column, the others relative to their best `(N, k)`."""
        if self.model.rule.needs_gradient:
            odds, lead = self._with_transform(z)
        else:
            answer = ask(self.model, z)
            odds = log_odds(answer.logits)
            lead = torch.where(
                answer.predicted == self.label, self._right(odds), _staged(answer, answer.slack)
            )
        label = torch.full((len(z), 1), self.label, device=z.device)
        rivals = odds.scatter(1, label, -torch.inf)
        return (odds - rivals.amax(dim=1, keepdim=True)).scatter(1, label, lead[:, None])

    def _right(self, odds: Tensor) -> Tensor:
        """Stage 1 `(N,)`."""
        return 1 + margin(odds, odds.new_full((len(odds),), self.label, dtype=torch.int64))

    def _with_transform(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Log-odds `(N, k)` and the lead `(N,)`; T is made only where the prediction is wrong."""
        logits = self.model.logits(z)
        odds = log_odds(logits)
        lead = right = self._right(odds)
        wrong = (logits.argmax(dim=1) != self.label).nonzero().squeeze(1)
        if len(wrong):
            answer = ask(self.model, z[wrong])
            # The slack is read at T(z); the step also keeps z itself on the way it came.
            lean = right[wrong]
            slack = answer.slack - (lean - lean.detach())
            staged = _staged(answer, slack)
            # The same points in a smaller batch may round to the other side of the boundary.
            back = answer.predicted == self.label
            lead = lead.index_copy(0, wrong, torch.where(back, lean.abs() + _LEAD, staged))
        return odds, lead


def _staged(answer: Answer, slack: Tensor) -> Tensor:
    """Stages 2 and 3 of the true class's lead `(N,)`, from the slack `(N,)`."""
    return torch.where(
        answer.accepted, -_LEAD - squash(slack), _LEAD + (1 - _LEAD) * squash(-slack)
    )
