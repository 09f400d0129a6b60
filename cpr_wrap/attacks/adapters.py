"""A selective classifier in the form that other packages expect: columns whose arg max decides.

Every adapter is exact: its arg max is the answer of the selective classifier. Every adapter is
differentiable: what depends on T(z) has the straight-through gradient.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import softsign

from cpr_wrap.objective import Goal, View, margin
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.solver import frozen

# Leads of the true class: at least `_LEAD` until the goal is reached, at least `_STAGE` while the
# prediction is right. Small, because attacks that extrapolate to a lead of 0 overshoot by them.
_LEAD = 0.001
_STAGE = 0.1


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


def _ask(model: SelectiveClassifier, z: Tensor) -> tuple[View, Tensor, Tensor]:
    """What the model says about points `(N, ...)`, with graph; its verdicts and slacks `(N,)`."""
    view = model.rule.view(model, z, verdict=True, path=(1.0,))
    score = view.known_score
    return view, score.detach() >= view.threshold, score - view.threshold


class _Adapter(nn.Module):
    """Columns for other packages; what they do to an adapter does not reach the model.

    The model is kept out of the module tree, so that `.to()` or `.train()` of an adapter leave it
    alone, and its parameters take no part in the graph, so that `backward()` leaves them alone.
    """

    model: SelectiveClassifier

    def __init__(self, model: SelectiveClassifier, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        vars(self)["model"] = model  # past nn.Module, which would make it a part of the adapter
        self._dtype = dtype
        self.training = False

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
            if not columns.requires_grad:
                # A rule that never rejects has a score without gradient; packages expect one.
                columns = columns + 0 * z.flatten(1).sum(dim=1, keepdim=True)
        return columns if wanted else columns.detach()


class BaseLogits(_Adapter):
    """The k class logits of the network, blind to rejection."""

    def columns(self, z: Tensor) -> Tensor:
        """Class logits `(N, k)`."""
        return self.model.logits(z)


class GoalLogits(_Adapter):
    """k columns: the true class's is the largest until the point is accepted and wrong.

    A rejected point shows the true class, whatever the network predicts there, so that a package
    which counts misclassifications counts our goal and nothing else. There is no reject column to
    aim at.

    The lead of the true class says how far the goal is, in three stages, each below the one before:

    1. predicted right: 0.1 + the true class's lead in log-odds at z;
    2. wrong and rejected: between 0 and 0.1, by what the score lacks to be accepted;
    3. accepted and wrong: negative.

    So crossing the network's boundary always counts as progress. It would not if outputs at z and
    at T(z) were simply added: just behind the boundary T(z) points back, and the sum drops.

    The label is the true class of every point, or one for each row of every batch `(N,)`.
    """

    def __init__(
        self, model: SelectiveClassifier, label: int | Tensor, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(model, dtype)
        self.label = label

    def columns(self, z: Tensor) -> Tensor:
        """The true class's lead in its column, the others relative to their best `(N, k)`."""
        label = torch.as_tensor(self.label, device=z.device).expand(len(z))
        measure = _cheap if self.model.rule.cost.total == 1 else _costly
        odds, lead = measure(self.model, z, label)
        rivals = odds.scatter(1, label[:, None], -torch.inf)
        relative = odds - rivals.amax(dim=1, keepdim=True)
        # Once the prediction is wrong, a second wrong class that rises only makes it less sure.
        right = odds.argmax(dim=1) == label
        relative = torch.where(right[:, None], relative, relative.detach())
        return relative.scatter(1, label[:, None], lead[:, None])


def _cheap(model: SelectiveClassifier, z: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds `(N, k)` and the true class's lead `(N,)`, the verdict read off the outputs."""
    view, accepted, slack = _ask(model, z)
    odds = log_odds(view.logits)
    right = _STAGE + margin(odds, label)
    return odds, torch.where(view.predicted == label, right, _staged(accepted, slack))


def _costly(model: SelectiveClassifier, z: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a costly verdict, which is asked for only where the prediction is wrong."""
    logits = model.logits(z)
    odds = log_odds(logits)
    lead = _STAGE + margin(odds, label)
    wrong = (logits.argmax(dim=1) != label).nonzero().squeeze(1)
    if len(wrong) == 0:
        return odds, lead
    view, accepted, slack = _ask(model, z[wrong])
    # The value is the slack, read at T(z); the gradient also keeps z itself on its way.
    lean = lead[wrong]
    staged = _staged(accepted, slack - (lean - lean.detach()))
    # In a smaller batch the same point may round to the other side of the boundary.
    back = view.predicted == label[wrong]
    return odds, lead.index_copy(0, wrong, torch.where(back, lean.abs() + _LEAD, staged))


def _staged(accepted: Tensor, slack: Tensor) -> Tensor:
    """Stages 2 and 3 of the true class's lead `(N,)`, from verdicts and slacks `(N,)`."""
    missing = _LEAD + (_STAGE - _LEAD) * softsign(-slack)
    return torch.where(accepted, -_LEAD - softsign(slack), missing)


class RejectLogits(_Adapter):
    """k + 1 columns: the last is the largest exactly where the input is rejected.

    Where the gradients lead depends on what an attack is after:

    - `REJECTED`: the reject column stands below the best class by the score's slack and has its
      gradient; the classes have none. An attack that aims at the reject column lowers the score.
    - `ACCEPTED_MISTAKE`: a class's column is its log-odds at z, plus those at T(z) where the rule
      has a T; the reject column has no gradient and stays low until it must be the largest. An
      attack that wants anything but the true class does not settle for a rejection.

    After accepted mistakes, `labels` may tell the true classes of a batch `(N,)`. Batches of as
    many points then get the classes of `GoalLogits` and the lowest reject column: a rejected point
    shows its true class.
    """

    def __init__(
        self,
        model: SelectiveClassifier,
        goal: Goal,
        dtype: torch.dtype | None = None,
        labels: Tensor | None = None,
    ) -> None:
        super().__init__(model, dtype)
        self.goal, self.labels = goal, labels

    def columns(self, z: Tensor) -> Tensor:
        """Classes and rejection `(N, k + 1)`."""
        if self.labels is not None and len(z) == len(self.labels):
            classes = GoalLogits(self.model, self.labels).columns(z)
            return torch.cat([classes, classes.detach().amin(dim=1, keepdim=True) - 1], dim=1)
        view, accepted, slack = _ask(self.model, z)
        odds = log_odds(view.logits)
        if self.goal is Goal.REJECTED:
            classes = (odds - odds.amax(dim=1, keepdim=True)).detach()
            reject = -slack
        else:
            classes = odds + log_odds(view.end_logits) if view.path else odds
            low, high = classes.detach().aminmax(dim=1)
            reject = torch.where(accepted, low - 1, high)
        winner = torch.where(accepted, view.predicted, odds.shape[1])
        return _crowned(torch.cat([classes, reject[:, None]], dim=1), winner)


def _crowned(columns: Tensor, winner: Tensor) -> Tensor:
    """Lift the winner's column above all others where it is not; the gradient stays as it is."""
    lead = margin(columns.detach(), winner)
    # Enough to survive rounding to float32.
    least = 1e-4 * (1 + columns.detach().abs().amax(dim=1))
    lift = torch.where(lead < least, least - lead, torch.zeros_like(lead))
    return columns.scatter_add(1, winner[:, None], lift[:, None])
