"""AutoAttack on the bare network, as in the paper, and AutoAttack adapted to our goal.

PyPI's `pyautoattack` and `autoattack` from GitHub both work. Their components are run directly, not
through `run_standard_evaluation`, which installs a trace function and so disables debuggers.
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cpr_wrap._checks import check_count, import_extra
from cpr_wrap._registry import Registry
from cpr_wrap.attacks.adapters import BaseLogits, GoalLogits
from cpr_wrap.attacks.guests import Group, GroupAttack, batch_seed, guest
from cpr_wrap.geometry import threat

PACKAGES = ("pyautoattack", "autoattack")
_NORMS = ("Linf", "L2")


class Version(NamedTuple):
    """A composition of AutoAttack; numbers that are None are the package's defaults."""

    base: str  #: The package's version that it starts from.
    components: tuple[str, ...]  #: Attacks to run, in this order.
    n_iter: int | None = None  #: Iterations of APGD and FAB.
    n_targets: int | None = None  #: Targets of APGD-T and FAB-T.


VERSIONS: Registry[Version] = Registry("version of AutoAttack")
VERSIONS.register("standard")(Version("standard", ("apgd-ce", "apgd-t", "fab-t", "square")))
VERSIONS.register("plus")(
    Version("plus", ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"))
)
VERSIONS.register("small")(Version("standard", ("apgd-ce", "apgd-t"), n_iter=20, n_targets=3))

# Where the packages keep each component.
_ATTRIBUTES = {
    "apgd-ce": "apgd",
    "apgd-dlr": "apgd",
    "apgd-t": "apgd_targeted",
    "fab": "fab",
    "fab-t": "fab",
    "square": "square",
}

# The difference-of-logits loss reads the third largest logit, its targeted form the fourth.
_FEWEST_CLASSES = {"apgd-dlr": 3, "apgd-t": 4}


class Plan(NamedTuple):
    """What AutoAttack will run on a given model and images."""

    components: tuple[str, ...]  #: Names in order.
    notes: tuple[str, ...]  #: What had to be skipped or replaced, and why.


@dataclass(frozen=True, kw_only=True)
class AutoAttackOnBase(GroupAttack):
    """AutoAttack on the network's k class logits, as the paper runs it.

    It stops at the first mistake of the bare network. The evaluation then judges whether the rule
    accepts that point. Images that the network misclassifies already are returned unchanged.

    Attributes:
        version: `standard` (APGD-CE, APGD-T, FAB-T and Square as published, up to 9,800 passes per
            image), `plus`, or `small` (APGD-CE of 20 iterations and APGD-T of 20 iterations on
            the 3 likeliest targets, below 200 passes).
        components: Attacks to run instead of the version's: `apgd-ce`, `apgd-dlr`, `apgd-t`, `fab`,
            `fab-t`, `square`.
        n_iter: Iterations of APGD and FAB; None for the version's default.
        n_restarts: Restarts of every component; None for the version's default.
        n_targets: Targets of APGD-T and FAB-T, at most k - 1; None for the version's default.
        n_queries: Queries of Square; None for the version's default.
        package: `pyautoattack`, `autoattack`, or `auto` for whichever is installed.
        verbose: Whether the package may print.

    Example:
        >>> plan = AutoAttackOnBase(version="small").plan(10, (1, 28, 28), "Linf")
        >>> plan.components
        ('apgd-ce', 'apgd-t')
    """

    version: str = "standard"
    components: tuple[str, ...] | None = None
    n_iter: int | None = None
    n_restarts: int | None = None
    n_targets: int | None = None
    n_queries: int | None = None
    package: Literal["auto", "pyautoattack", "autoattack"] = "auto"
    verbose: bool = False

    _title: ClassVar[str] = "AutoAttack"

    def __post_init__(self) -> None:
        VERSIONS[self.version]
        for name in self.components or ():
            if name not in _ATTRIBUTES:
                raise ValueError(
                    f"components: expected names among {', '.join(_ATTRIBUTES)}, got {name!r}"
                )
        if self.components == ():
            raise ValueError("components: expected at least one, or None for the version's own")
        for name in ("n_iter", "n_restarts", "n_targets", "n_queries"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        if self.package not in ("auto", *PACKAGES):
            raise ValueError(
                f"package: expected auto, {' or '.join(PACKAGES)}, got {self.package!r}"
            )

    @property
    def name(self) -> str:
        """The name in tables."""
        return self._title if self.version == "standard" else f"{self._title}-{self.version}"

    def plan(self, num_classes: int, shape: tuple[int, ...], norm: str) -> Plan:
        """List what will be run, for a number of classes and the shape of one image."""
        names: list[str] = []
        notes: list[str] = []
        for name in self.components or VERSIONS[self.version].components:
            fewest = _FEWEST_CLASSES.get(name, 2)
            if num_classes < fewest:
                instead = "apgd-dlr" if num_classes == 3 else "apgd-ce"
                notes.append(
                    f"{name} reads {fewest} logits and there are {num_classes} classes: "
                    f"{instead} takes its place"
                )
                name = instead
            if name == "square" and not _square_fits(shape, norm):
                notes.append(
                    f"square needs images (C, H, W){' of at least 5 x 5' * (norm == 'L2')} "
                    f"and these have the shape {shape}: left out"
                )
                continue
            if name not in names:
                names.append(name)
        return Plan(tuple(names), tuple(notes))

    def _points(self, group: Group) -> Tensor:
        """One point per image, the image itself if AutoAttack finds none.

        APGD's random starts depend only on the seed and the image's number. Square draws per batch.
        """
        norm = group.norm
        if threat(norm).name not in _NORMS:
            warnings.warn(
                f"{self.name}: AutoAttack knows {' and '.join(_NORMS)}, not {norm}: left out",
                stacklevel=3,
            )
            return group.x.detach().clone()
        package = _load(self.package)
        with (
            guest(group.model, group.seed, logger="auto-attack", verbose=self.verbose),
            torch.no_grad(),
        ):
            points = group.x.detach().clone(memory_format=torch.contiguous_format)
            if group.eps == 0:
                return points
            group = replace(group, x=points.clone())
            columns = self._look(group)(points)
            plan = self.plan(columns.shape[1], tuple(points.shape[1:]), norm)
            standing = columns.argmax(dim=1) == group.y
            for name in plan.components:
                for rows in self._batches(group.y, standing.nonzero().squeeze(1), name):
                    part = group.take(rows)
                    attack = self._component(package, name, part, columns.shape[1])
                    if name.startswith("apgd"):
                        found = self._climb(attack, part, name).to(points.dtype)
                    else:
                        found = attack.perturb(part.x.float(), part.y).to(points.dtype)
                    broken = self._look(part)(found).argmax(dim=1) != part.y
                    points[rows[broken]] = found[broken]
                    standing[rows[broken]] = False
        for note in plan.notes:
            warnings.warn(f"{self.name}: {note}", stacklevel=3)
        return points

    def _look(self, group: Group) -> nn.Module:
        """The columns of a whole group; the true class is the largest while an image stands."""
        return BaseLogits(group.model, group.x.dtype)

    def _batches(self, y: Tensor, rows: Tensor, name: str) -> list[Tensor]:  # noqa: ARG002
        """Those of the rows `(M,)` that a component attacks together."""
        return [rows] if len(rows) else []

    def _climb(self, attack: Any, group: Group, name: str) -> Tensor:
        """APGD's `perturb`, but from starts of ours, with views that know whose points they see.

        Each restart, and for APGD-T each target, is for the images that still stand.
        """
        x = group.x.float()
        attack.init_hyperparam(x)
        found, standing = x.clone(), attack.model(x).argmax(dim=1) == group.y
        targets = range(2, attack.n_target_classes + 2) if name == "apgd-t" else (None,)
        for turn, (target, _) in enumerate(product(targets, range(attack.n_restarts))):
            rows = standing.nonzero().squeeze(1)
            if not len(rows):
                break
            part, images = group.take(rows), x[rows]
            attack.model = self._look(part)
            if target is not None:
                attack.y_target = attack.model(images).sort(dim=1).indices[:, -target]
            start = part.start(images, name, turn)
            _, holds, _, points = attack.attack_single_run(images, part.y, x_init=start)
            broken = holds == 0
            found[rows[broken]] = points[broken]
            standing[rows[broken]] = False
        return found

    def _component(self, package: Any, name: str, group: Group, num_classes: int) -> Any:
        """One of AutoAttack's attacks, set up as the version and our settings want it."""
        version, view = VERSIONS[self.version], self._look(group)
        # Keywords that both packages know.
        common = {"norm": group.norm, "eps": group.eps, "device": group.x.device}
        common["seed"] = batch_seed(group.seed, group.index)
        whole = package.AutoAttack(view, version=version.base, **common)
        attack = getattr(whole, _ATTRIBUTES[name])
        n_iter = self.n_iter or version.n_iter
        if n_iter is not None and name != "square":
            # Made anew, because APGD derives its checkpoints from the number at birth.
            restarts = attack.n_restarts
            attack = type(attack)(view, n_iter=n_iter, n_restarts=restarts, **common)
        if name == "fab-t":
            attack.targeted, attack.n_restarts = True, 1
        if hasattr(attack, "n_target_classes"):
            # Both packages assume ten classes.
            wanted = self.n_targets or version.n_targets or attack.n_target_classes
            attack.n_target_classes = min(wanted, num_classes - 1)
        if self.n_restarts is not None:
            attack.n_restarts = self.n_restarts
        if name == "square" and self.n_queries is not None:
            attack.n_queries = self.n_queries
        if name in ("apgd-ce", "apgd-dlr"):
            attack.loss = name.removeprefix("apgd-")
        attack.verbose = self.verbose
        return attack


@dataclass(frozen=True, kw_only=True)
class AdaptiveAutoAttack(AutoAttackOnBase):
    """AutoAttack's components with our goal: a point counts if it is accepted and wrong.

    The components see `GoalLogits`, which depends on the true class, but AutoAttack passes points
    without labels. So FAB and Square run once per true class. At points that the network
    misclassifies, a step evaluates T(z) and costs as much as a call of the selective classifier.
    The default is therefore `small`; the settings are those of `AutoAttackOnBase`.
    """

    version: str = "small"

    _title: ClassVar[str] = "adaptive AutoAttack"

    def _look(self, group: Group) -> nn.Module:
        # The one class also of those parts of a batch that FAB and Square ask about.
        one = bool((group.y == group.y[0]).all())
        return GoalLogits(group.model, int(group.y[0]) if one else group.y, group.x.dtype)

    def _batches(self, y: Tensor, rows: Tensor, name: str) -> list[Tensor]:
        if name.startswith("apgd"):
            return super()._batches(y, rows, name)
        return [rows[y[rows] == label] for label in y[rows].unique()]


def _square_fits(shape: tuple[int, ...], norm: str) -> bool:
    return len(shape) == 3 and (norm != "L2" or min(shape[1:]) >= 5)


def _load(package: str) -> Any:
    """The AutoAttack package to use."""
    if package != "auto":
        return import_extra(package)
    installed = (name for name in PACKAGES if importlib.util.find_spec(name) is not None)
    return import_extra(next(installed, PACKAGES[0]))
