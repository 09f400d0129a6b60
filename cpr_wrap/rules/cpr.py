"""Consistent-prediction rejection (CPR): reject if a small step changes the prediction."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap import noise
from cpr_wrap._checks import check_count, check_positive
from cpr_wrap.bounds import Proof, Radii
from cpr_wrap.geometry import threat
from cpr_wrap.meter import Passes
from cpr_wrap.objective import (
    Objective,
    Path,
    Targets,
    View,
    confident_mistake,
    doubt,
    log_prob,
    low_confidence,
    margin,
    objective,
)
from cpr_wrap.rule import BySearch, CalibratedBy, Network, RejectionRule, register_rule
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.smoothing import exact, smoothed
from cpr_wrap.solver import PGD, Keep, ascend

Verdict = Literal["end", "any"]

# The paper's settings for 32 x 32 images.
RADIUS, STEPS, STEP_SIZE = 0.0055, 10, 0.001


@objective("CLCIA", path=(1.0,))
def low_confidence_twice(view: View) -> tuple[Tensor, ...]:
    """Make the network unsure at z and at T(z)."""
    return (doubt(view.logits), doubt(view.end_logits))


@objective("PDIA", targets=Targets.ALL, path=(1.0,))
def disagreement(view: View) -> tuple[Tensor, ...]:
    """Predict the target at z, and something else at T(z)."""
    return (log_prob(view.logits, view.target), -log_prob(view.end_logits, view.target))


@objective("CHCMOA", targets=Targets.OTHERS, path=(1.0,))
def consistent_mistake(view: View) -> tuple[Tensor, ...]:
    """Be sure of the target class at z and at T(z)."""
    return (log_prob(view.logits, view.target), log_prob(view.end_logits, view.target))


@objective("CHCMOA-path", targets=Targets.OTHERS, path=(0.25, 0.5, 1.0))
def path_mistake(view: View) -> tuple[Tensor, ...]:
    """Be sure of the target class at z and all along the path to T(z)."""
    return tuple(log_prob(logits, view.target) for logits in (view.logits, *view.path_logits))


@objective("PATH-IA", targets=Targets.OTHERS, path=(0.5, 1.0))
def path_disagreement(view: View) -> tuple[Tensor, ...]:
    """Lead the path to T(z) into the target class, whatever is predicted at z."""
    return tuple(log_prob(logits, view.target) for logits in view.path_logits)


@register_rule("cpr")
@dataclass(frozen=True, kw_only=True)
class Consistency(RejectionRule):
    """Accepts when the prediction at T(x) is the prediction at x (Algorithm 1 of the paper).

    T(x) is the last point of a deterministic gradient ascent from x on the cross-entropy of the
    predicted class, inside a ball around x and inside [0, 1]. The score is the margin at T(x) of
    the class predicted at x. It ranks inputs, and a score of at least 0 is accepted.

    Attributes:
        radius: The consistency radius, in pixel units.
        steps: Number of steps m.
        step_size: Step size in pixel units. None means 2.5 · radius / steps, but the paper's 0.001
            for the paper's radius 0.0055 and 10 steps.
        norm: `Linf` or `L2`.
        keep: `last` as in the paper's text; `best` (largest loss among x_0 … x_m) as in the
            published code.
        verdict: `end` uses the prediction at T(x) alone; `any` rejects if the prediction changes at
            any point of the path, at no extra cost.
        starts: Number of ascents: the first from x, the others from fixed random points of the
            ball. The input is accepted if the prediction is the same after all of them.
        smooth: Compute T(x) with smoothed gradients, see `cpr_wrap.smoothing`.

    Example:
        >>> import torch
        >>> from cpr_wrap import SelectiveClassifier
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 2)).eval()
        >>> weights = {"weight": torch.tensor([[-1.0], [1.0]]), "bias": torch.tensor([0.5, -0.5])}
        >>> _ = network[1].load_state_dict(weights)  # the boundary is at 0.5
        >>> model = SelectiveClassifier(network, Consistency(radius=0.1, steps=5))
        >>> model.predict(torch.tensor([0.2, 0.45, 0.9]).view(3, 1, 1, 1)).tolist()
        [0, -1, 1]
    """

    inner = (low_confidence, low_confidence_twice, disagreement)
    extra_inner = (path_disagreement,)
    rejects_near_boundary = True

    radius: float = RADIUS
    steps: int = STEPS
    step_size: float | None = None
    norm: str = "Linf"
    keep: Keep = "last"
    verdict: Verdict = "end"
    starts: int = 1
    smooth: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.radius, "radius")
        check_count(self.steps, "steps")
        check_count(self.starts, "starts")
        if self.verdict not in ("end", "any"):
            raise ValueError(f"verdict: expected 'end' or 'any', got {self.verdict!r}")
        object.__setattr__(self, "norm", threat(self.norm).name)
        covered = self.pgd.steps * self.pgd.step_size
        # 1e-9: ten steps of 0.01 do reach 0.1, whatever float multiplication says.
        if self.radius > covered * (1 + 1e-9):
            warnings.warn(
                f"T(x) cannot reach its radius: {self.steps} steps of {self.pgd.step_size:g} cover "
                f"{covered:g}, radius is {self.radius:g}, so that part of it has no effect. Raise "
                "steps or step_size, or lower radius.",
                stacklevel=3,
            )

    @property
    def outer(self) -> tuple[Objective, ...]:
        """The paper's attacks; where more than one end decides, one on the whole path."""
        everywhere = self.verdict == "any" or self.starts > 1
        return (confident_mistake, path_mistake if everywhere else consistent_mistake)

    @property
    def paths(self) -> int:
        """One for each ascent."""
        return self.starts

    @property
    def pgd(self) -> PGD:
        """The ascent that makes T(x)."""
        length = self.step_size
        if length is None:
            papers = (self.radius, self.steps) == (RADIUS, STEPS)
            length = STEP_SIZE if papers else 2.5 * self.radius / self.steps
        return PGD(steps=self.steps, step_size=length, norm=self.norm, keep=self.keep)

    @property
    def reach(self) -> float:
        """The consistency radius."""
        return self.radius

    @property
    def cost(self) -> Passes:
        """A forward at x and one after each step, and a backward for each step."""
        best = int(self.keep == "best")
        return Passes(self.starts * (self.steps + 1 + best), self.starts * self.steps)

    @property
    def calibrated_by(self) -> CalibratedBy:
        """By a search over the radius, since T has no score with a useful quantile."""
        if self.step_size is None:
            return BySearch(setting="radius", advice="raise max_radius")
        covered = self.steps * self.step_size
        return BySearch(setting="radius", most=covered, advice="raise steps or step_size")

    def path(
        self, model: Network, z: Tensor, shares: Sequence[float], label: Tensor | None = None
    ) -> Path:
        """The path to T(z). Its gradients stay the rule's own if the caller smooths gradients."""
        wanted = [round(share * self.steps) for share in shares if share < 1]
        outputs: list[Tensor] = []  # at x
        points: list[Tensor] = []
        leads: list[Tensor] = []

        def cross_entropy(z: Tensor) -> Tensor:
            out = model.outputs(z)
            if not outputs:
                outputs.append(out.detach())
            climbed = outputs[0].argmax(dim=1) if label is None else label
            if self.verdict == "any":
                leads.append(_lead(out.detach(), climbed))
            return -log_prob(out, climbed)

        def watch(step: int, z: Tensor) -> None:
            if step in wanted:
                points.append(z)

        backward = smoothed() if self.smooth else exact()
        with torch.inference_mode(False), torch.enable_grad(), backward:
            x = (z.clone() if z.is_inference() else z).detach()
            for number in range(self.starts):
                start = self._start(x, number)
                end = ascend(cross_entropy, x, self.radius, self.pgd, start=start, watch=watch)
                points.append(end)
        nowhere = outputs[0].new_full((len(x),), torch.inf)
        return Path(tuple(points), torch.stack([nowhere, *leads]).amin(dim=0), outputs[0])

    def _start(self, x: Tensor, number: int) -> Tensor | None:
        """Where an ascent begins: x, or the same point of the ball for every image."""
        if number == 0:
            return None
        key = noise.keys(number, torch.zeros(1, dtype=torch.int64, device=x.device))
        return x + threat(self.norm).uniform_offset(x[:1], self.radius, key)

    def transform(self, model: Network, x: Tensor) -> Tensor:
        """T(x), of the first ascent, for inputs `(N, ...)`; without graph."""
        first = self if self.starts == 1 else replace(self, starts=1)
        return first.path(model, x, ()).points[-1]

    def score(self, view: View) -> Tensor:
        """Smallest lead, at the points of the path, of the class predicted at x."""
        leads = [_lead(outputs, view.predicted) for outputs in view.path]
        return torch.stack(leads).amin(dim=0)

    def view(
        self,
        model: Network,
        z: Tensor,
        *,
        verdict: bool = True,
        path: Sequence[float] = (),
        label: Tensor | None = None,
        along: Path | None = None,
    ) -> View:
        """Outputs at z and, if requested, at T(z), with the verdict that follows from them."""
        graph = z.requires_grad and torch.is_grad_enabled()
        if not (verdict or path):
            return self.unscored(z, model.outputs(z))
        way = self.path(model, z, path, label) if along is None else along
        known = None if graph else way.outputs
        view = self.unscored(z, model.outputs(z) if known is None else known)
        with torch.set_grad_enabled(graph):
            # Straight through: T(z) in the forward pass, the identity's gradient in the backward.
            asked = [model.outputs(z + (p - z).detach() if graph else p) for p in way.points]
        view = replace(view, path=tuple(asked), points=way.points)
        each = len(asked) // self.starts
        ends = replace(view, path=view.path[each - 1 :: each])  # of the ascents
        with exact():
            score = torch.minimum(self.score(ends), way.lead)
        if label is not None:
            # The path is not the one that T takes where another class is predicted.
            score = torch.where(view.predicted == label, score, -torch.inf)
        return replace(view, score=score)

    def certificate(self, proof: Proof) -> Radii:
        """Radii within which no prediction is wrong, and within which T finds no wrong one either.

        Nothing proves that T *will* change a wrong prediction.
        """
        radius = proof.radius(tried=(proof.eps + self.radius,))
        inside = radius - self.radius - 2 * threat(self.norm).slack(proof.x)
        # Leads on the way are proven to be above 0, and no more.
        return Radii(radius, inside if self.threshold <= 0 else torch.full_like(radius, -torch.inf))

    def explain(self, view: View, name: Callable[[int], str] = str) -> list[str]:
        """Which class the prediction changes to at T(x)."""

        def phrase(here: int, there: int, lead: float) -> str:
            if lead >= self.threshold:
                return f"the prediction holds within {self.radius:g}, by {lead:.3g}"
            if there != here:
                return f"the prediction changes to {name(there)} at T(x), by {-lead:.3g}"
            return f"the prediction changes on the way to T(x), by {-lead:.3g}"

        rows = (view.predicted, view.end_logits.argmax(dim=1), view.known_score.detach())
        return [phrase(*row) for row in zip(*(each.tolist() for each in rows), strict=True)]

    def describe(self) -> str:
        """The radius and the steps; other settings where they are not the default."""
        parts = [f"{self.norm} radius {self.radius:.4g}"]
        parts += [f"{self.steps} steps of {self.pgd.step_size:.4g}"]
        settings = {key: getattr(self, key) for key in ("keep", "verdict", "starts", "smooth")}
        parts += [f"{k} {v}" for k, v in settings.items() if v != getattr(Consistency, k)]
        return f"{self.name} ({', '.join(parts)})"

    def stand_in(self) -> Self:
        """One step straight to the ball's edge instead of many small ones."""
        return replace(self, steps=1, step_size=self.radius, keep="last", starts=1, smooth=False)


def _lead(outputs: Tensor, predicted: Tensor) -> Tensor:
    """Margin of a class; negative exactly where arg max is another one."""
    lead = margin(outputs, predicted)
    # On an exact tie arg max decides, and a class it does not choose must not pass as "lead 0".
    lost_tie = (lead == 0) & (outputs.argmax(dim=1) != predicted)
    return torch.where(lost_tie, -torch.finfo(lead.dtype).tiny, lead)


class CPRWrapper(SelectiveClassifier):
    """Any classifier, made selective by consistent-prediction rejection.

    The network is in eval mode; `source` is as in `SelectiveClassifier`, and all other arguments
    are settings of `Consistency`.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
        >>> model = CPRWrapper(net, radius=0.1)
        >>> model(torch.rand(2, 1, 2, 2)).labels.shape
        torch.Size([2])
    """

    def __init__(
        self,
        base: nn.Module,
        radius: float = RADIUS,
        steps: int = STEPS,
        step_size: float | None = None,
        norm: str = "Linf",
        keep: Keep = "last",
        source: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        rule = Consistency(
            radius=radius, steps=steps, step_size=step_size, norm=norm, keep=keep, **settings
        )
        super().__init__(base, rule, source)
