"""Training methods: a loss per image, computed from a network and a batch.

A method does not deal with optimizers, epochs or devices; the loop does not deal with losses.
Losses are per image, so that the loop can average them over several processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from cpr_wrap import noise
from cpr_wrap._checks import check_positive
from cpr_wrap._registry import Registry
from cpr_wrap.geometry import per_row, threat
from cpr_wrap.solver import PGD, Keep, ascend, frozen

METHODS: Registry[type[Method]] = Registry("training method")

Start = Literal["uniform", "ray", "ray-or-zero", "gaussian", "zero"]


class Losses(NamedTuple):
    """Losses and correct predictions of a batch."""

    rows: Tensor  #: The loss of each image `(N,)`, with graph; the batch's loss is their mean.
    clean: Tensor | None = None  #: Whether each clean image was classified correctly `(A,)`.
    adversarial: Tensor | None = None  #: The same for the attacked images `(B,)`.


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Settings of a training method."""

    name: ClassVar[str]  #: The method's name in `METHODS`.
    #: The rejection rule of the trained network; CPR for methods without a rule of their own.
    rule_name: ClassVar[str] = "cpr"
    extra_outputs: ClassVar[int] = 0  #: Number of output columns after the k class logits.
    #: Whether the extra column comes from a separate head (ATRR).
    auxiliary: ClassVar[bool] = False

    @abstractmethod
    def loss(self, network: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> Losses:
        """Compute the loss of each image.

        Args:
            network: The network, in training mode.
            x: Images `(N, C, H, W)` in [0, 1].
            y: True classes `(N,)`.
            keys: Keys of this step's random numbers, one per image `(N,)`.

        Returns:
            The losses, and which images were classified correctly.
        """

    def scaled(self, factor: float) -> Self:  # noqa: ARG002
        """The same method at a fraction of its eps, to warm up; itself if it does not attack."""
        return self


_M = TypeVar("_M", bound=type[Method])


def register_method(name: str) -> Callable[[_M], _M]:
    """Register a method under a name for recipes and the command line."""

    def enter(method: _M) -> _M:
        method.name = name
        METHODS.register(name)(method)
        return method

    return enter


@dataclass(frozen=True, kw_only=True)
class AdversarialMethod(Method):
    """A method that attacks each batch before it learns from it."""

    #: Length of all steps together in units of eps, where no step size is given.
    reach: ClassVar[float] = 2.5
    positive: ClassVar[tuple[str, ...]] = ("eps",)  #: The settings that have to be above zero.

    eps: float = 8 / 255  #: Radius of the ball, in pixel units.
    steps: int = 10  #: Steps of the attack.
    step_size: float | None = None  #: Step size in pixel units; `reach * eps / steps` if None.
    norm: str = "Linf"  #: `Linf` or `L2`.
    #: Where the attack starts.
    #: `uniform`: anywhere in the ball. `ray`: u * eps along a random direction, u uniform, which is
    #: how the published code starts. `ray-or-zero`: that or the image itself, by a coin per image
    #: (the published code tosses one coin per batch). `gaussian`: 0.001 * N(0, 1) away. `zero`: the
    #: image itself.
    start: Start = "uniform"
    #: Train on the attack's `last` point, or on its `best` one as the published code does.
    keep: Keep = "last"

    def __post_init__(self) -> None:
        for name in self.positive:
            check_positive(getattr(self, name), name)
        if self.start not in _STARTS:
            raise ValueError(f"start: expected one of {', '.join(_STARTS)}, got {self.start!r}")
        _ = self.pgd  # refuses what the solver would refuse, now rather than in the first batch

    @property
    def pgd(self) -> PGD:
        """The attack's settings for the solver."""
        step_size = self.step_size
        if step_size is None:
            step_size = self.reach * self.eps / max(self.steps, 1)
        return PGD(steps=self.steps, step_size=step_size, norm=self.norm, keep=self.keep)

    def scaled(self, factor: float) -> Self:
        """The same method with eps and step size times `factor`."""
        step_size = None if self.step_size is None else self.step_size * factor
        return replace(self, eps=self.eps * factor, step_size=step_size)

    def attack(
        self, network: nn.Module, value: Callable[[Tensor], Tensor], x: Tensor, keys: Tensor
    ) -> Tensor:
        """Make `value` large within eps of `x`, with the network held still.

        Args:
            network: The network that `value` calls.
            value: Differentiable function of points `(N, C, H, W)` that gives `(N,)`.
            x: Images `(N, C, H, W)`.
            keys: Keys of the random start `(N,)`.

        Returns:
            Points `(N, C, H, W)` without graph.
        """
        start = x + _STARTS[self.start](x, self.eps, self.norm, keys)
        with attacking(network):
            return ascend(value, x.detach(), self.eps, self.pgd, start=start)


@contextmanager
def attacking(network: nn.Module) -> Iterator[None]:
    """Hold a network still: no parameter gradients, and batch norm reads its running statistics."""
    with in_eval_mode(network), frozen(network):
        yield


@contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode; every submodule gets its own mode back."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """-log probability of the true class, `(N, k)` and `(N,)` to `(N,)`."""
    return F.cross_entropy(outputs, y, reduction="none")


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """Whether the largest output is the true class, `(N, k)` and `(N,)` to `(N,)`."""
    return outputs.detach().argmax(dim=1) == y


_STARTS: dict[str, Callable[[Tensor, float, str, Tensor], Tensor]] = {
    "uniform": lambda x, eps, norm, keys: threat(norm).uniform_offset(x, eps, keys),
    "ray": lambda x, eps, norm, keys: threat(norm).random_offset(x, eps, keys),
    "ray-or-zero": lambda x, eps, norm, keys: _coin(x, keys) * _STARTS["ray"](x, eps, norm, keys),
    "gaussian": lambda x, _eps, _norm, keys: (
        0.001 * noise.normal(keys, x[0].numel()).to(x.dtype).view_as(x)
    ),
    "zero": lambda x, *_: torch.zeros_like(x),
}


def _coin(x: Tensor, keys: Tensor) -> Tensor:
    """True for about half of the images, shaped to be multiplied with them."""
    return per_row(noise.uniform(noise.keys(2, keys), 1).squeeze(1) < 0.5, x)
