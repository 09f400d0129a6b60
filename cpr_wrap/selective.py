"""A network and a rejection rule make a selective classifier: it answers a class, or REJECT."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap._checks import check_eval_mode, check_images
from cpr_wrap._registry import Registry
from cpr_wrap.meter import tally
from cpr_wrap.objective import Objective, View

REJECT = -1
"""The label of a rejected input."""

LogitsMode = Literal["base", "reject-column"]


class _Answer(NamedTuple):
    logits: Tensor
    accepted: Tensor


class Selection(_Answer):
    """What a selective classifier answers: a pair of logits and verdicts, with their score.

    Attributes:
        logits: Class logits `(N, k)`.
        accepted: Whether the prediction stands `(N,)`.
        score: The rule's score `(N,)`, larger for surer; accepted from the rule's threshold on.
            Not part of the pair.
    """

    score: Tensor

    def __new__(cls, logits: Tensor, accepted: Tensor, score: Tensor) -> Self:
        """Make the pair and attach the score."""
        selection = super().__new__(cls, logits, accepted)
        selection.score = score
        return selection

    @property
    def predicted(self) -> Tensor:
        """Predicted classes, rejected or not `(N,)`."""
        return self.logits.argmax(dim=1)

    @property
    def labels(self) -> Tensor:
        """Predicted classes with REJECT (-1) where rejected `(N,)`."""
        return torch.where(self.accepted, self.predicted, REJECT)


@dataclass(frozen=True, kw_only=True)
class RejectionRule(ABC):
    """Scores a batch and accepts what reaches its threshold.

    A rule comes with the attacks on it: `inner` objectives try to make it reject, `outer` ones try
    to slip a mistake past it. `register_rule` refuses a rule without them.

    Attributes:
        threshold: Scores from here on are accepted.
    """

    threshold: float = 0.0

    name: ClassVar[str] = ""
    inner: ClassVar[tuple[Objective, ...]] = ()
    outer: ClassVar[tuple[Objective, ...]] = ()
    extra_outer: ClassVar[tuple[Objective, ...]] = ()
    """Outer objectives beyond the paper's list, for the stronger budgets."""
    extra_outputs: ClassVar[int] = 0
    """Columns that the network has after its k class logits."""
    needs_gradient: ClassVar[bool] = False
    """Whether scoring differentiates the network at the input."""
    can_reject: ClassVar[bool] = True

    @abstractmethod
    def score(self, model: SelectiveClassifier, x: Tensor, outputs: Tensor) -> Tensor:
        """Score inputs.

        Args:
            model: The selective classifier.
            x: Inputs `(N, ...)`; a leaf that requires a gradient if the rule needs one.
            outputs: The network's outputs at `x` `(N, k + extra)`, with graph in that case.

        Returns:
            Scores `(N,)`, larger = accept.
        """

    def view(self, model: SelectiveClassifier, z: Tensor, *, shadow: bool = False) -> View:  # noqa: ARG002
        """Ask the network about points once, for objectives and for the verdict.

        Args:
            model: The selective classifier.
            z: Points `(N, ...)`, a leaf that requires a gradient.
            shadow: Whether an objective will read the outputs at T(z).
        """
        outputs = model.outputs(z)
        accepted = self.score(model, z, outputs.detach()) >= self.threshold
        return View(outputs, None, accepted, outputs.shape[1] - self.extra_outputs)

    def stand_in(self) -> Self:
        """A cheaper rule of the same kind to steer a search with; the true one judges."""
        return self


RuleClass = TypeVar("RuleClass", bound=type[RejectionRule])
RULES: Registry[type[RejectionRule]] = Registry("rejection rule")


def register_rule(name: str) -> Callable[[RuleClass], RuleClass]:
    """Enter a rule under a name; a defense enters with the attacks on it."""

    def enter(rule: RuleClass) -> RuleClass:
        wanted = ["outer", "inner"] if rule.can_reject else ["outer"]
        for kind in wanted:
            if not getattr(rule, kind):
                raise TypeError(
                    f"{rule.__name__} declares no {kind} attack; "
                    "a defense enters with the attacks on it"
                )
        rule.name = name
        RULES.register(name)(rule)
        return rule

    return enter


class SelectiveClassifier(nn.Module):
    """A classifier that may abstain.

    Attributes:
        base: The network, from images in [0, 1] to outputs `(N, k + rule.extra_outputs)`.
        rule: When to reject.
        source: How to build the base again (an address, or a network name with its settings),
            kept so that `save` can write it down; may be empty.
    """

    def __init__(
        self, base: nn.Module, rule: RejectionRule, source: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        if not isinstance(base, nn.Module):
            raise TypeError(f"base: expected a torch.nn.Module, got {type(base).__name__}")
        if not isinstance(rule, RejectionRule):
            raise TypeError(
                f"rule: expected a RejectionRule, e.g. cpr_wrap.Consistency(), got {rule!r}"
            )
        check_eval_mode(base)
        self.base = base
        self.rule = rule
        self.source = dict(source or {})
        self.training = False  # not .eval(): that would touch the base

    def train(self, mode: bool = True) -> Self:
        """Refuse training mode; train the base network itself and wrap it afterwards."""
        if mode:
            raise ValueError(
                "a selective classifier is for evaluation; train model.base and wrap it afterwards"
            )
        return super().train(False)

    def outputs(self, x: Tensor) -> Tensor:
        """All outputs of the network `(N, k + extra)`, differentiable."""
        out = self.base(tally(x))
        least = 2 + self.rule.extra_outputs
        if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[1] < least:
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"expected outputs of shape (N, {least} or more) from the network (rule "
                f"{self.rule.name!r} reads {self.rule.extra_outputs} extra columns), got {got}"
            )
        if len(out) != len(x):
            raise ValueError(f"expected {len(x)} rows of outputs from the network, got {len(out)}")
        return out

    def logits(self, x: Tensor) -> Tensor:
        """Class logits `(N, k)`, differentiable."""
        out = self.outputs(x)
        return out[:, : out.shape[1] - self.rule.extra_outputs]

    def forward(self, x: Tensor) -> Selection:
        """Classify or reject.

        Right under `torch.no_grad()` and `torch.inference_mode()`; the answer carries no graph.

        Args:
            x: Images `(N, ...)` in [0, 1].
        """
        check_images(x)
        check_eval_mode(self.base)
        return self.judge(x)

    def judge(self, x: Tensor) -> Selection:
        """`forward` without its checks, for callers that have made them."""
        with torch.inference_mode(False), torch.set_grad_enabled(self.rule.needs_gradient):
            # Inference tensors cannot enter a graph; their clones can.
            point = x.clone() if x.is_inference() else x.detach()
            if self.rule.needs_gradient:
                point = point.detach().requires_grad_()
            outputs = self.outputs(point)
            score = self.rule.score(self, point, outputs).detach()
            logits = outputs.detach()[:, : outputs.shape[1] - self.rule.extra_outputs]
            return Selection(logits, score >= self.rule.threshold, score)

    def predict(self, x: Tensor) -> Tensor:
        """Labels `(N,)`, REJECT (-1) where rejected."""
        return self(x).labels  # type: ignore[no-any-return]

    def as_logits(self, mode: LogitsMode = "base") -> nn.Module:
        """A plain module for other tools.

        Args:
            mode: `base` gives the k class logits, differentiable, blind to rejection;
                `reject-column` appends a column that is the largest exactly where the input is
                rejected. That column has no useful gradient: attack the model with our own
                attacks or adapters, not through it.
        """
        views: dict[str, type[nn.Module]] = {"base": _BaseLogits, "reject-column": _RejectColumn}
        if mode not in views:
            raise ValueError(f"mode: expected one of {', '.join(views)}, got {mode!r}")
        return views[mode](self)

    def with_rule(self, rule: RejectionRule) -> SelectiveClassifier:
        """The same network under another rule."""
        return SelectiveClassifier(self.base, rule, self.source)

    def save(self, folder: str | Path) -> Path:
        """Write weights (`model.safetensors`) and `config.json` with the rule and the source.

        Args:
            folder: Made if it does not exist. `cpr_wrap.load("local:FOLDER")` reads it.
        """
        from safetensors.torch import save_model

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        save_model(self.base, str(path / "model.safetensors"))
        config = {"format": 1, "rule": rule_config(self.rule), **self.source}
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        return path

    def extra_repr(self) -> str:
        """The rule and its settings."""
        return f"rule={self.rule}"


def rule_config(rule: RejectionRule) -> dict[str, Any]:
    """Describe a rule as plain data: its registered name and its settings."""
    return {"name": rule.name, **asdict(rule)}


def rule_from_config(config: Mapping[str, Any]) -> RejectionRule:
    """Build the rule that `rule_config` described."""
    settings = dict(config)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"a rule's description needs its name, got {dict(config)}")
    try:
        return RULES[name](**settings)
    except TypeError as error:
        raise ValueError(f"rule {name!r} does not take the settings {settings}: {error}") from error


class _BaseLogits(nn.Module):
    """The k class logits of a selective classifier."""

    def __init__(self, model: SelectiveClassifier) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        return self.model.logits(x)


class _RejectColumn(_BaseLogits):
    """k + 1 logits whose largest is the last exactly where the input is rejected."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model.logits(x)
        selection = self.model.judge(x)
        top = logits.detach().amax(dim=1)
        # Clearly above or below the largest class logit, whatever its size: adding 1 to a large one
        # would round away. Without gradient.
        gap = 1 + top.abs()
        column = torch.where(selection.accepted, top - gap, top + gap)
        return torch.cat([logits, column[:, None]], dim=1)
