"""The protocol of a rejection rule: what the engine, reports and the command line need from it.

A rule computes a score from the network's outputs at a point, and accepts scores at or above its
threshold. It declares everything else: how far from a point it looks, what a verdict costs, how it
is calibrated, and which attacks adapt to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap._registry import Registry, find, near
from cpr_wrap.bounds import Proof, Radii
from cpr_wrap.meter import Passes
from cpr_wrap.objective import Objective, Path, View

DEFAULT_RULE = "cpr"
"""The default rule of a network that has none."""


class Network(Protocol):
    """The part of a model that a rule may use."""

    base: nn.Module
    """The network itself, for rules that read its layers."""

    def outputs(self, x: Tensor) -> Tensor:
        """All outputs of the network `(N, k + extra)`, differentiable and counted."""
        ...


@dataclass(frozen=True, kw_only=True)
class ByQuantile:
    """Calibrated by its threshold, which becomes a quantile of the scores."""


@dataclass(frozen=True, kw_only=True)
class BySearch:
    """Calibrated by a search over one setting; rejection increases with it."""

    setting: str  #: Name of the setting.
    #: The largest value that has an effect; None if only the range of pixels limits it.
    most: float | None = None
    advice: str = ""  #: What to do if even that value rejects too few images.


@dataclass(frozen=True, kw_only=True)
class Unchanged:
    """Not calibrated unless forced; then by its threshold."""

    why: str  #: The reason, as the beginning of a sentence.


CalibratedBy = ByQuantile | BySearch | Unchanged


@dataclass(frozen=True, kw_only=True)
class RejectionRule(ABC):
    """Base class of rules: it scores inputs and accepts scores at or above the threshold.

    A rule declares the attacks on it: `inner` objectives try to make it reject, `outer` objectives
    try to make it accept a mistake. They are class attributes, or properties if they depend on the
    rule's settings. `register_rule` refuses a rule without them.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from torch import nn
        >>> from cpr_wrap.objective import low_score, scored_mistake
        >>> @dataclass(frozen=True, kw_only=True)
        ... class LargeLogit(RejectionRule):
        ...     inner, outer = (low_score,), (scored_mistake,)
        ...
        ...     def score(self, view):
        ...         return view.logits.amax(dim=1)
        >>> from cpr_wrap import SelectiveClassifier
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
        >>> SelectiveClassifier(network, LargeLogit(threshold=99.0)).predict(torch.rand(2, 1, 2, 2))
        tensor([-1, -1])
    """

    threshold: float = 0.0  #: Scores of at least this are accepted.

    name: ClassVar[str] = ""
    extra_outputs: ClassVar[int] = 0
    """Number of output columns after the k class logits."""
    can_reject: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = False
    """Whether the score needs gradients of the network at the input."""
    stochastic: ClassVar[bool] = False
    """Whether the same input may get different verdicts. Such rules are refused for now."""
    rejects_near_boundary: ClassVar[bool] = False
    """Whether a rejection proves that the network's boundary is within `reach`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            # Numbers from arrays and tensors would not survive being written down.
            if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.dim() == 0):
                object.__setattr__(self, field.name, value := value.item())
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise TypeError(f"{field.name}: expected True or False, got {value!r:.60}")
        if isinstance(self.threshold, bool) or not math.isfinite(self.threshold):
            raise ValueError(f"threshold: expected a finite number, got {self.threshold}")

    @property
    def inner(self) -> tuple[Objective, ...]:
        """Objectives that try to make the rule reject; the strongest first."""
        return ()

    @property
    def outer(self) -> tuple[Objective, ...]:
        """Objectives that try to make the rule accept a mistake; the strongest last."""
        return ()

    @property
    def extra_inner(self) -> tuple[Objective, ...]:
        """Inner objectives beyond the paper's list, for the stronger budgets."""
        return ()

    @property
    def norm(self) -> str | None:
        """The norm of the rule's own ball; None if it has none."""
        return None

    @property
    def reach(self) -> float:
        """How far from a point its verdict looks, in pixel units."""
        return 0.0

    @property
    def cost(self) -> Passes:
        """Passes per verdict on one input."""
        return Passes(1, 1) if self.needs_gradient else Passes(1, 0)

    @property
    def paths(self) -> int:
        """How many paths the verdict follows from a point, for rules that have a path."""
        return 1

    @property
    def calibrated_by(self) -> CalibratedBy:
        """How `calibrate` sets the rule."""
        return ByQuantile()

    @property
    def accepts_everything(self) -> bool:
        """Whether the rule, with these settings, never rejects."""
        return not self.can_reject

    @abstractmethod
    def score(self, view: View) -> Tensor:
        """Score inputs.

        Args:
            view: The network's outputs at the inputs. If the rule `needs_gradient`, or an attack
                differentiates the score, `view.z` is a leaf and `view.outputs` has a graph.

        Returns:
            Scores `(N,)`, larger for more certain.
        """

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
        """Call the network once, for objectives and for the verdict.

        Args:
            model: The model that gives outputs.
            z: Points `(N, ...)`.
            verdict: Whether to compute the score. A score that costs no passes is always computed.
            path: Points of the rule's own path at which to compute outputs, as shares of the path.
                Rules without a path ignore them.
            label: Compute the path as if these classes `(N,)` were predicted at z.
            along: A path that is already known; it is not computed again.
        """
        del path, label, along
        scored = verdict or self.cost.total == 1
        differentiates = scored and self.needs_gradient
        with torch.set_grad_enabled(torch.is_grad_enabled() or differentiates):
            if differentiates and not z.requires_grad:
                z = z.detach().requires_grad_()
            view = self.unscored(z, model.outputs(z))
            return self.scored(view, model) if scored else view

    def path(
        self, model: Network, z: Tensor, shares: Sequence[float], label: Tensor | None = None
    ) -> Path | None:
        """The path behind the verdict on points; None for rules that look at z alone.

        Args:
            model: The model that gives outputs.
            z: Points `(N, ...)`.
            shares: Points of the path to return in addition to its end, as shares of it.
            label: Compute it as if these classes `(N,)` were predicted at z.
        """
        del model, z, shares, label
        return None

    def unscored(self, z: Tensor, outputs: Tensor) -> View:
        """The view of points `(N, ...)` with outputs `(N, k + extra)`, without a score."""
        classes = outputs.shape[1] - self.extra_outputs
        return View(z=z, outputs=outputs, num_classes=classes, threshold=self.threshold)

    def scored(self, view: View, model: Network) -> View:
        """The same view with the score; `model` is for rules that ask more of it."""
        del model
        return replace(view, score=self.score(view))

    def explain(self, view: View, name: Callable[[int], str] = str) -> list[str]:
        """One phrase per row on why it is accepted or rejected.

        Args:
            view: A view with its score.
            name: Function from a class number to its name.
        """
        del name
        sides = {True: "reaches", False: "is below"}
        return [
            f"{self.name} score {score:.4g} {sides[score >= self.threshold]} {self.threshold:.4g}"
            for score in view.known_score.detach().tolist()
        ]

    def certificate(self, proof: Proof) -> Radii | None:
        """What bounds on the network's outputs prove about verdicts around images.

        Args:
            proof: Bounds around correctly classified images, for any radius.

        Returns:
            Radii `(N,)` without an accepted mistake and without a rejection; None if verdicts do
            not follow from such bounds.
        """
        del proof
        return None

    def describe(self) -> str:
        """The rule and its settings in one phrase, e.g. `confidence (threshold 0.98)`."""
        if not self.can_reject:
            return f"{self.name} (accepts everything)"
        text = [f"{k.replace('_', ' ')} {_short(v)}" for k, v in rule_settings(self).items()]
        return f"{self.name} ({', '.join(text)})"

    def stand_in(self) -> Self:
        """A cheaper rule of the same kind, to guide searches; the rule itself judges."""
        return self

    def modules(self) -> Mapping[str, nn.Module]:
        """The rule's own networks by name; they are moved and saved with the classifier."""
        return {}

    @classmethod
    def blank_modules(cls, settings: Mapping[str, Any]) -> dict[str, nn.Module]:
        """Make the rule's own networks without weights, to load saved ones into.

        Args:
            settings: The settings of the saved rule, without its modules.
        """
        del settings
        return {}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


RuleClass = TypeVar("RuleClass", bound=type[RejectionRule])
RULES: Registry[type[RejectionRule]] = Registry(
    "rejection rule", "cpr_wrap.rules", lambda name, rule: register_rule(name)(rule)
)


def register_rule(name: str) -> Callable[[RuleClass], RuleClass]:
    """Register a rule under a name. It must declare the attacks on it.

    Example:
        >>> from dataclasses import dataclass
        >>> from cpr_wrap import RejectionRule
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Hopeful(RejectionRule):
        ...     def score(self, view):
        ...         return view.logits.amax(dim=1)
        >>> register_rule("hopeful")(Hopeful)
        Traceback (most recent call last):
        ...
        TypeError: Hopeful declares no outer attack; a defense enters with the attacks on it
    """

    def enter(rule: RuleClass) -> RuleClass:
        if not (isinstance(rule, type) and issubclass(rule, RejectionRule)):
            raise TypeError(f"{name}: expected a class of RejectionRule, got {rule!r:.80}")
        for kind in ["outer", "inner"] if rule.can_reject else ["outer"]:
            declared = getattr(rule, kind)
            if not declared or declared is getattr(RejectionRule, kind):
                raise TypeError(
                    f"{rule.__name__} declares no {kind} attack; "
                    "a defense enters with the attacks on it"
                )
        RULES.register(name)(rule)
        rule.name = name
        return rule

    return enter


def find_rule(name: str) -> type[RejectionRule]:
    """Find the class of a rule by its registered name or its address `module:name`."""
    kind = find(RULES, name)
    # A class that is registered nowhere goes by its address.
    known = RULES.get(getattr(kind, "name", "")) is kind
    return kind if known else register_rule(name)(kind)


def rule_settings(rule: RejectionRule) -> dict[str, Any]:
    """A rule's settings as plain data, without its own networks."""
    own = set(rule.modules())
    return {f.name: getattr(rule, f.name) for f in fields(rule) if f.name not in own}


def rule_config(rule: RejectionRule) -> dict[str, Any]:
    """Describe a rule as plain data: its registered name and its settings."""
    return {"name": rule.name, **rule_settings(rule)}


def rule_from_config(
    config: Mapping[str, Any], modules: Mapping[str, nn.Module] | None = None
) -> RejectionRule:
    """Build the rule that `rule_config` described.

    Args:
        config: The description.
        modules: The rule's own networks by name; by default without weights.
    """
    if not isinstance(config, Mapping) or not isinstance(config.get("name"), str):
        raise ValueError(f"a rule's description needs its name, got {config!r:.200}")
    settings = dict(config)
    return make_rule(settings.pop("name"), settings, modules)


def make_rule(
    name: str, settings: Mapping[str, Any], modules: Mapping[str, nn.Module] | None = None
) -> RejectionRule:
    """Make a registered rule; unknown settings are refused with a suggestion.

    Example:
        >>> import cpr_wrap.rules
        >>> make_rule("confidence", {"threshold": 0.9})
        Confidence(threshold=0.9)
    """
    kind = RULES[name]
    own = dict(modules) if modules is not None else kind.blank_modules(settings)
    known = [field.name for field in fields(kind) if field.name not in own]
    for key in settings:
        if key not in known:
            raise ValueError(
                f"rule {name!r} has no setting {key!r}.{near(key, known)} Its settings: "
                f"{', '.join(known)}"
            )
    try:
        return kind(**{**settings, **own})
    except TypeError as error:
        raise ValueError(
            f"rule {name!r} does not take the settings {dict(settings)}: {error}"
        ) from error
