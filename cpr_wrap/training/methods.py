"""The training methods: plain and adversarial training, and those made for a rejection rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap.bounds import leads
from cpr_wrap.geometry import threat
from cpr_wrap.solver import PGD, Keep
from cpr_wrap.training.method import (
    AdversarialMethod,
    Losses,
    Method,
    Start,
    attacking,
    correct,
    cross_entropy,
    in_eval_mode,
    register_method,
)


@register_method("standard")
@dataclass(frozen=True, kw_only=True)
class StandardTraining(Method):
    """Cross entropy on clean images; the trained network is not robust."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:  # noqa: ARG002
        """Cross entropy of each image."""
        outputs = network(x)
        return Losses(rows=cross_entropy(outputs, y), clean=correct(outputs, y))


@register_method("at")
@dataclass(frozen=True, kw_only=True)
class AT(AdversarialMethod):
    """Cross entropy at the points that PGD finds, and not on clean images (Madry et al. 2018)."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Cross entropy of each attacked image."""
        outputs = network(self.attack(network, lambda z: cross_entropy(network(z), y), x, keys))
        return Losses(rows=cross_entropy(outputs, y), adversarial=correct(outputs, y))


@register_method("fast-at")
@dataclass(frozen=True, kw_only=True)
class FastAT(AT):
    """Adversarial training with one long step (Wong et al. 2020), at twice the standard cost.

    The step size is 1.25 eps, which reaches most of the ball's surface from a uniform start. Much
    longer steps can cause catastrophic overfitting: the network learns to resist this one attack
    only.
    """

    reach = 1.25

    steps: int = 1


def kl(outputs: Tensor, others: Tensor) -> Tensor:
    """KL(softmax(outputs) || softmax(others)) of each row, `(N, k)` twice to `(N,)`."""
    log_p, log_q = outputs.log_softmax(dim=1), others.log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)


@register_method("trades")
@dataclass(frozen=True, kw_only=True)
class TRADES(AdversarialMethod):
    """Cross entropy, plus `beta` times the divergence to the worst point (Zhang et al. 2019)."""

    positive = ("eps", "beta")

    beta: float = 6.0  #: Weight of the divergence; larger trades clean accuracy for robustness.
    # At the image itself the divergence is flat, so the attack starts a hair's breadth away.
    start: Start = "gaussian"

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """CE(x) + beta * KL(h(x) || h(x')), with gradients through both arguments of KL."""
        with attacking(network), torch.no_grad():
            reference = network(x)
        x_adv = self.attack(network, lambda z: kl(reference, network(z)), x, keys)
        outputs, attacked = network(x), network(x_adv)
        rows = cross_entropy(outputs, y) + self.beta * kl(outputs, attacked)
        return Losses(rows, correct(outputs, y), correct(attacked, y))


def boosted_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """-log p_y - log(1 - largest other probability), `(N, k)` and `(N,)` to `(N,)`."""
    rival = outputs.detach().scatter(1, y[:, None], -torch.inf).argmax(dim=1, keepdim=True)
    # 1 - p_rival is the share of all the others, which stays exact when p_rival is close to 1.
    others = outputs.scatter(1, rival, -torch.inf).logsumexp(dim=1)
    return cross_entropy(outputs, y) + outputs.logsumexp(dim=1) - others


@register_method("mart")
@dataclass(frozen=True, kw_only=True)
class MART(AdversarialMethod):
    """Adversarial training with more weight on misclassified images (Wang et al. 2020)."""

    positive = ("eps", "beta")

    beta: float = 5.0  #: Weight of the divergence.

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """BCE(x') + beta * KL(h(x) || h(x')) * (1 - h_y(x)), gradients through all of it."""
        x_adv = self.attack(network, lambda z: cross_entropy(network(z), y), x, keys)
        outputs, attacked = network(x), network(x_adv)
        doubt = -torch.expm1(-cross_entropy(outputs, y))
        rows = boosted_cross_entropy(attacked, y) + self.beta * kl(outputs, attacked) * doubt
        return Losses(rows, correct(outputs, y), correct(attacked, y))


@register_method("ibp")
@dataclass(frozen=True, kw_only=True)
class IBP(AdversarialMethod):
    """Cross entropy on the image and, by interval bounds, around it (Gowal et al. 2018)."""

    rule_name = "verified"
    positive = ("eps", "weight", "box")

    eps: float = 0.3
    weight: float = 0.5  #: Share of the bound in the loss; it grows with eps during the warm-up.
    #: Share of eps that the bounds cover. With less than 1, PGD first looks for the worst point
    #: within the rest of eps, and the bounds cover a small box around it (Müller et al. 2023).
    box: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("weight", "box"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}: expected a share in (0, 1], got {getattr(self, name)}")
        if self.norm != "Linf":
            raise ValueError(f"norm: interval bounds are for Linf, got {self.norm!r}")

    def scaled(self, factor: float) -> Self:
        """The same method with eps, step size and the bound's weight times `factor`."""
        return replace(super().scaled(factor), weight=self.weight * factor)

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """(1 - weight) * CE(x) + weight * CE(worst outputs within the box)."""
        center = x
        if self.box < 1:
            nearer = super().scaled(1 - self.box)
            center = nearer.attack(network, lambda z: cross_entropy(network(z), y), x, keys)
        outputs = network(x)
        with in_eval_mode(network):  # bounds know neither dropout nor a batch's own statistics
            bound = leads(network, center, y, self.box * self.eps, margin=0.0)
        # Where y leads class j by at least b_j, the worst outputs have 0 for y and -b_j for j.
        worst = cross_entropy(-bound.scatter(1, y[:, None], 0.0), y)
        rows = (1 - self.weight) * cross_entropy(outputs, y) + self.weight * worst
        proven = bound.detach().amin(dim=1) > 0
        return Losses(rows, correct(outputs, y), proven)


def wrong_confidence(outputs: Tensor, y: Tensor) -> Tensor:
    """Largest probability of a wrong class, `(N, k)` and `(N,)` to `(N,)`."""
    return outputs.softmax(dim=1).scatter(1, y[:, None], -1.0).amax(dim=1)


@register_method("ccat")
@dataclass(frozen=True, kw_only=True)
class CCAT(AdversarialMethod):
    """Low confidence on attacked images, lower for larger perturbations (Stutz et al. 2020).

    One half of each batch is clean; the other half is attacked and gets softer labels.
    """

    rule_name = "confidence"
    positive = ("eps", "rho")
    reach = 2 / 3  # 40 steps of 0.005 at eps = 0.3

    steps: int = 40
    start: Start = "ray-or-zero"
    # As published. Backtracking takes no step that lowers the value, so the last point is the best.
    keep: Keep = "best"
    rho: float = 10.0  #: How fast the label becomes uniform with the size of the perturbation.
    momentum: float = 0.9  #: Momentum of the attack.
    #: Factor by which the step size is divided after a step that lowers the objective.
    backtrack: float = 1.5

    @property
    def pgd(self) -> PGD:
        """PGD with momentum and backtracking."""
        return replace(super().pgd, momentum=self.momentum, backtrack=self.backtrack)

    def soft_labels(self, x: Tensor, x_adv: Tensor, y: Tensor, num_classes: int) -> Tensor:
        """Mix `(N, k)` of the true label and the uniform one, which is all of it at distance eps.

        `x` and `x_adv` are images before and after the attack `(N, ...)`, `y` true classes `(N,)`.
        """
        length = threat(self.norm).distance(x_adv, x).to(x.dtype)
        trust = (1 - (length / self.eps).clamp(max=1)) ** self.rho
        one_hot = F.one_hot(y, num_classes).to(x.dtype)
        return trust[:, None] * one_hot + (1 - trust[:, None]) / num_classes

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Cross entropy of every second image, and of the others, attacked, to softer labels."""
        (x_clean, x), (y_clean, y) = ((part[0::2], part[1::2]) for part in (x, y))
        x_adv = self.attack(network, lambda z: wrong_confidence(network(z), y), x, keys[1::2])
        x, x_adv, y = torch.cat([x_clean, x]), torch.cat([x_clean, x_adv]), torch.cat([y_clean, y])
        outputs = network(x_adv)
        labels = self.soft_labels(x, x_adv, y, outputs.shape[1]).to(outputs.dtype)
        right = correct(outputs, y)
        return Losses(
            rows=-(labels * outputs.log_softmax(dim=1)).sum(dim=1),
            clean=right[: len(y_clean)],
            adversarial=right[len(y_clean) :],
        )


def abstain_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Loss `(N,)` of an answer that is neither right nor a rejection.

    From class logits and the reject logit `(N, k + 1)`, the smaller of two cross entropies: of the
    true class among the k classes, and of the reject class among all but the true one.
    """
    right = cross_entropy(outputs[:, :-1], y)
    others = outputs.scatter(1, y[:, None], -torch.inf).logsumexp(dim=1)
    return torch.minimum(right, others - outputs[:, -1])


@register_method("rcd")
@dataclass(frozen=True, kw_only=True)
class RCD(AdversarialMethod):
    """Adversarial training with a reject class that attacked images may fall into.

    Sheikholeslami et al. 2021, with PGD in place of interval bounds. One half of the batch (every
    second image) has the abstention term and the clean term, the other half the adversarial term.
    Both attacks run in one batch.
    """

    rule_name = "rcd"
    extra_outputs = 1
    positive = ("eps", "abstain_weight", "clean_weight")

    abstain_weight: float = 1.0  #: The paper's lambda_1.
    clean_weight: float = 1.0  #: The paper's lambda_2.

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """lambda_1 * abstain(x') + lambda_2 * CE(x) of one half, CE(x') of the other."""
        # Sorted by role: the first `half` images may abstain.
        x, y, keys = (torch.cat([part[0::2], part[1::2]]) for part in (x, y, keys))
        half = (len(y) + 1) // 2
        y_first, y_second = y[:half], y[half:]

        def value(z: Tensor) -> Tensor:
            first, second = network(z).tensor_split([half])
            return torch.cat([abstain_loss(first, y_first), cross_entropy(second, y_second)])

        x_adv = self.attack(network, value, x, keys)
        outputs = network(torch.cat([x_adv, x[:half]]))
        first, second, clean = outputs.split([half, len(y_second), half])
        may_abstain = self.abstain_weight * abstain_loss(first, y_first)
        may_abstain = may_abstain + self.clean_weight * cross_entropy(clean, y_first)
        return Losses(
            rows=torch.cat([may_abstain, cross_entropy(second, y_second)]),
            clean=correct(clean, y_first),
            adversarial=correct(second, y_second),
        )


def rectification_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Binary cross entropy `(N,)` between the rectified confidence c * A and the true probability.

    From class logits and the auxiliary logit `(N, k + 1)`, whose sigmoid is A. The true probability
    is a constant in it; so is c where the prediction is right, where only A is to learn.
    """
    logits, auxiliary = outputs[:, :-1], outputs[:, -1]
    truth = logits.detach().softmax(dim=1).gather(1, y[:, None]).squeeze(1)
    predicted = logits.detach().argmax(dim=1)
    logits = torch.where((predicted == y)[:, None], logits.detach(), logits)
    # In logarithms all the way, where the published code floors log(0) at -100:
    # 1 - c * A = (1 - c) + c * (1 - A).
    total = logits.logsumexp(dim=1)
    log_c = logits.gather(1, predicted[:, None]).squeeze(1) - total
    log_doubt = logits.scatter(1, predicted[:, None], -torch.inf).logsumexp(dim=1) - total
    log_believed = log_c + F.logsigmoid(auxiliary)
    log_refused = torch.logaddexp(log_doubt, log_c + F.logsigmoid(-auxiliary))
    return -(truth * log_believed + (1 - truth) * log_refused)


@register_method("atrr")
@dataclass(frozen=True, kw_only=True)
class ATRR(AdversarialMethod):
    """Adversarial training of the classes, and of a head that rates them (Pang et al. 2022)."""

    rule_name = "atrr"
    extra_outputs = 1
    auxiliary = True
    positive = ("eps", "rectify_weight")

    rectify_weight: float = 1.0  #: The paper's lambda.

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """CE(x') + lambda * BCE(c(x') * A(x'), h_y(x')); the attack sees the class head alone."""
        x_adv = self.attack(network, lambda z: cross_entropy(network(z)[:, :-1], y), x, keys)
        outputs = network(x_adv)
        logits = outputs[:, :-1]
        rows = cross_entropy(logits, y) + self.rectify_weight * rectification_loss(outputs, y)
        return Losses(rows, adversarial=correct(logits, y))
