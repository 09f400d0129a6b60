"""A network and a rejection rule make a selective classifier: it answers a class, or REJECT."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap._checks import check_eval_mode, check_images
from cpr_wrap._files import write_atomically, write_tensors
from cpr_wrap.meter import seen, tally
from cpr_wrap.metrics.records import REJECTED
from cpr_wrap.objective import View
from cpr_wrap.rule import RULES as RULES
from cpr_wrap.rule import RejectionRule as RejectionRule
from cpr_wrap.rule import rule_config as rule_config
from cpr_wrap.rule import rule_from_config as rule_from_config

REJECT = REJECTED
"""The label of a rejected input."""

WEIGHTS, RULE_WEIGHTS, CONFIG = "model.safetensors", "rule.safetensors", "config.json"
"""The files of a saved model."""

LogitsMode = Literal["base", "reject-column"]


class Selection(NamedTuple):
    """The answer of a selective classifier.

    Attributes:
        logits: Class logits `(N, k)`.
        accepted: Whether the input is accepted `(N,)`, bool.
        score: The rule's score `(N,)`; inputs with at least the rule's threshold are accepted.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
        >>> answer = Selection(logits, torch.tensor([True, False]), torch.tensor([0.7, 0.1]))
        >>> answer.predicted.tolist(), answer.labels.tolist()
        ([0, 1], [0, -1])
    """

    logits: Tensor
    accepted: Tensor
    score: Tensor

    @property
    def predicted(self) -> Tensor:
        """Predicted classes, rejected or not `(N,)`."""
        return self.logits.argmax(dim=1)

    @property
    def labels(self) -> Tensor:
        """Predicted classes with REJECT (-1) where rejected `(N,)`."""
        return torch.where(self.accepted, self.predicted, REJECT)


class SelectiveClassifier(nn.Module):
    """A network and a rejection rule: a classifier that may reject.

    Attributes:
        base: The network, from images in [0, 1] to outputs `(N, k + rule.extra_outputs)`.
        rule: The rejection rule.
        companions: The rule's own networks, if it has any.
        source: How to build the base again (an address, or a network name with its settings), for
            `save`; may be empty.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from cpr_wrap import Confidence
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
        >>> model = SelectiveClassifier(network, Confidence(threshold=1.0))
        >>> model.predict(torch.rand(2, 1, 2, 2)).tolist()
        [-1, -1]
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
        self.training = False  # not .eval(): that would touch the base
        self.base, self.rule = base, rule
        self.companions = nn.ModuleDict(rule.modules())
        self.companions.training = False
        self.source = dict(source or {})
        check_eval_mode(self)

    def train(self, mode: bool = True) -> Self:
        """Refuse training mode; train the base network itself and wrap it afterward."""
        if mode:
            raise ValueError(
                "a selective classifier is for evaluation; train model.base and wrap it afterward"
            )
        return super().train(False)

    def outputs(self, x: Tensor) -> Tensor:
        """All outputs of the network `(N, k + extra)`, differentiable.

        A network in half precision gets its input in that precision and returns float32, so points
        and distances lose no digits.
        """
        dtype = network_dtype(self.base)
        try:
            out = self.base(tally(x if dtype is None else x.to(dtype)))
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise  # too little memory, for example
            hint = "; a single image needs a batch dimension, x[None]" if x.dim() == 3 else ""
            raise RuntimeError(
                f"the network fails on inputs of shape {tuple(x.shape)}: {error}{hint}"
            ) from error
        least = 2 + self.rule.extra_outputs
        if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[1] < least:
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"expected outputs of shape (N, {least} or more) from the network (rule "
                f"{self.rule.name!r} reads {self.rule.extra_outputs} extra columns), got {got}"
            )
        if len(out) != len(x):
            raise ValueError(f"expected {len(x)} rows of outputs from the network, got {len(out)}")
        seen(out)
        return out.float() if out.dtype in (torch.float16, torch.bfloat16) else out

    def logits(self, x: Tensor) -> Tensor:
        """Class logits `(N, k)`, differentiable."""
        out = self.outputs(x)
        return out[:, : out.shape[1] - self.rule.extra_outputs]

    def forward(self, x: Tensor) -> Selection:
        """Classify or reject.

        Works under `torch.no_grad()` and `torch.inference_mode()`; the answer has no graph.

        Args:
            x: Images `(N, ...)` in [0, 1].
        """
        check_images(x)
        check_eval_mode(self)
        return self.judge(x)

    def judge(self, x: Tensor) -> Selection:
        """`forward` without its checks of the input."""
        view = self.look(x)
        outputs, score = view.outputs.detach(), view.known_score.detach()
        check_finite(outputs)
        if not outputs.is_meta and bool(score.isnan().any()):
            bad = int(score.isnan().int().argmax())
            raise RuntimeError(
                f"rule {self.rule.name!r} gives NaN as its score, first in row {bad}; that is no "
                "verdict"
            )
        logits = outputs[:, : view.num_classes]
        return Selection(logits, score >= self.rule.threshold, score)

    def look(self, x: Tensor, path: Sequence[float] = ()) -> View:
        """The network's outputs at inputs, with the rule's score.

        Args:
            x: Images `(N, ...)` in [0, 1].
            path: Points of the rule's own path at which to compute outputs, as shares of the path.
        """
        with torch.inference_mode(False), torch.no_grad():
            # Inference tensors cannot enter a graph; their clones can.
            point = (x.clone() if x.is_inference() else x).detach()
            point = point.to(torch.promote_types(point.dtype, torch.float32))
            return self.rule.view(self, point, path=path)

    def predict(self, x: Tensor) -> Tensor:
        """Labels `(N,)`, REJECT (-1) where rejected."""
        return self(x).labels  # type: ignore[no-any-return]

    def as_logits(self, mode: LogitsMode = "base") -> nn.Module:
        """A plain module for other tools.

        Args:
            mode: `base` gives the k class logits, differentiable and without rejection.
                `reject-column` appends a column that is the largest exactly if the input is
                rejected. That column has no useful gradient: use the attacks or adapters of this
                package instead of attacking through it.
        """
        if mode not in get_args(LogitsMode):
            modes = ", ".join(get_args(LogitsMode))
            raise ValueError(f"mode: expected one of {modes}, got {mode!r}")
        return _Logits(self, reject_column=mode == "reject-column")

    def with_rule(self, rule: RejectionRule) -> SelectiveClassifier:
        """The same network with another rule."""
        return SelectiveClassifier(self.base, rule, self.source)

    def save(self, folder: str | Path) -> Path:
        """Write weights (`model.safetensors`) and `config.json` with the rule and the source.

        The rule's own networks go to `rule.safetensors`.

        Args:
            folder: Created if it does not exist. `cpr_wrap.load("local:FOLDER")` reads it.
        """
        path = Path(folder)
        write_tensors(path / WEIGHTS, _distinct(self.base))
        if len(self.companions):
            write_tensors(path / RULE_WEIGHTS, _distinct(self.companions))
        config = {"format": 1, "rule": rule_config(self.rule), **self.source}
        write_atomically(path / CONFIG, json.dumps(config, indent=2) + "\n")
        return path

    def extra_repr(self) -> str:
        """The rule and its settings."""
        return f"rule={self.rule}"


def _distinct(network: nn.Module) -> dict[str, Tensor]:
    """A network's tensors by name, each once: of several names for the same weights the first."""
    seen: dict[Any, tuple[str, Tensor]] = {}
    for name, tensor in network.state_dict().items():
        seen.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), (name, tensor))
    return dict(seen.values())


def load_rule(folder: Path, config: Mapping[str, Any]) -> RejectionRule:
    """The rule that a model's `config.json` describes, with the weights of its own networks."""
    rule = rule_from_config(config)
    if not rule.modules():
        return rule
    from safetensors.torch import load_model

    held = nn.ModuleDict(rule.modules())
    if not (folder / RULE_WEIGHTS).is_file():
        raise LookupError(
            f"rule {rule.name!r} has networks of its own: expected {RULE_WEIGHTS} in {folder}"
        )
    load_model(held, str(folder / RULE_WEIGHTS))
    return rule


def check_finite(outputs: Tensor) -> None:
    """Refuse outputs `(N, k)` that are NaN or infinite."""
    if outputs.is_meta or bool(outputs.isfinite().all()):
        return
    bad = (~outputs.isfinite()).any(dim=1)
    raise RuntimeError(
        f"the network's outputs are NaN or infinite for {int(bad.sum())} of {len(outputs)} "
        f"inputs, the first in row {int(bad.int().argmax())}; such outputs are not an answer"
    )


def network_dtype(network: nn.Module) -> torch.dtype | None:
    """The precision that a network computes in; None where it has no parameters that tell."""
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), None)


def network_device(network: nn.Module, otherwise: torch.device | None = None) -> torch.device:
    """The device that a network is on; `otherwise`, or the CPU, where it has no parameters."""
    return next((p.device for p in network.parameters()), otherwise or torch.device("cpu"))


class _Logits(nn.Module):
    """The k class logits; with `reject_column` one more, the largest exactly where rejected."""

    def __init__(self, model: SelectiveClassifier, *, reject_column: bool) -> None:
        super().__init__()
        self.model, self.reject_column, self.training = model, reject_column, False

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model.logits(x)
        if not self.reject_column:
            return logits
        top = logits.detach().amax(dim=1)
        # Clearly above or below the largest class logit, whatever its size: adding 1 to a large one
        # would round away. Without gradient.
        gap = 1 + top.abs()
        column = torch.where(self.model.judge(x).accepted, top - gap, top + gap)
        return torch.cat([logits, column[:, None]], dim=1)
