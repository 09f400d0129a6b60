"""Whole trainings as frozen settings: the paper's, and ones that a CPU finishes.

`<data set>-<method>` is what the paper's appendix says. Where its published code does something
else, `<data set>-<method>-published` is that. On SVHN all have the published code's augmentation:
the text names none, and for TRADES that of CIFAR-10, which mirrors digits.

`mnist-compact-<method>` and `cifar10-compact-at` are ours, for two cores and a quarter of an hour;
the bundled models come from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from cpr_wrap._checks import check_eps, check_positive, check_share
from cpr_wrap._registry import Registry
from cpr_wrap.networks import NETWORKS
from cpr_wrap.rules import Consistency
from cpr_wrap.selective import RejectionRule, rule_from_config
from cpr_wrap.training.at import AT
from cpr_wrap.training.atrr import ATRR
from cpr_wrap.training.augmentation import AUGMENTATIONS
from cpr_wrap.training.ccat import CCAT
from cpr_wrap.training.fast_at import FastAT
from cpr_wrap.training.mart import MART
from cpr_wrap.training.method import METHODS, AdversarialMethod, Method, describe_method
from cpr_wrap.training.rcd import RCD
from cpr_wrap.training.schedule import SCHEDULES, Decay, Linear, Milestones, Schedule
from cpr_wrap.training.standard import Standard
from cpr_wrap.training.trades import TRADES

_LINEAR = Linear()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what a training gives, but the images.

    Attributes:
        method: The loss and its attack.
        network: A name in `cpr_wrap.networks.NETWORKS`; not read where a network is given.
        dataset: A name for `cpr_wrap.data.load_data`; not read where images are given.
        epochs: How often every image is seen.
        batch_size: Images a step, over all processes together; the last batch may be smaller, or
            larger by a single image that was left over.
        lr: Learning rate of SGD at its highest.
        momentum: Momentum of SGD.
        nesterov: Whether that is Nesterov's.
        weight_decay: L2 weight decay.
        schedule: How the learning rate goes down.
        warmup: Share of the training over which eps (and the attack's step) grows from zero to
            its full size. At a large eps small networks get stuck at chance without it.
        augmentation: A name in `AUGMENTATIONS`.
        rule_settings: Settings of the rejection rule that the trained network gets.
        reject_rate: Share of correctly classified validation images that a rule with a threshold
            (CCAT's, ATRR's) may reject; its threshold is set accordingly.
        seed: Seed of initial weights, order of images, augmentation and attacks.
    """

    method: Method
    network: str = "resnet20"
    dataset: str = "cifar10"
    epochs: int = 30
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Schedule = _LINEAR
    warmup: float = 0.0
    augmentation: str = "none"
    rule_settings: Mapping[str, Any] = field(default_factory=dict)
    reject_rate: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise TypeError(f"method: expected a training method like AT(), got {self.method!r}")
        if not isinstance(self.schedule, Schedule):
            raise TypeError(f"schedule: expected a schedule like Linear(), got {self.schedule!r}")
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value}")
        check_positive(self.lr, "lr")
        check_eps(self.weight_decay, "weight_decay")
        check_share(self.reject_rate, "reject_rate")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected a number in [0, 1), got {self.momentum}")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup: expected a share of the training, got {self.warmup}")
        NETWORKS[self.network]
        AUGMENTATIONS[self.augmentation]
        _ = self.rule  # refuses settings of another rule now, not after the training

    @property
    def rule(self) -> RejectionRule:
        """The rejection rule that the trained network gets, before any calibration."""
        return rule_from_config({"name": self.method.rule_name, **self.rule_settings})

    def with_method(self, method: Method) -> Recipe:
        """The same recipe with another method, and the settings of the rule if it stays."""
        stays = method.rule_name == self.method.rule_name
        return replace(self, method=method, rule_settings=self.rule_settings if stays else {})


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain data, for config.json."""
    plain = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    plain["rule_settings"] = dict(recipe.rule_settings)
    plain["method"] = describe_method(recipe.method)
    plain["schedule"] = {"name": recipe.schedule.name, **asdict(recipe.schedule)}
    return plain


def recipe_from_description(description: Mapping[str, Any]) -> Recipe:
    """Build the recipe that `describe_recipe` described."""
    plain = dict(description)
    try:
        method, schedule = dict(plain.pop("method")), dict(plain.pop("schedule"))
        if "epochs" in schedule:
            schedule["epochs"] = tuple(schedule["epochs"])  # JSON has no tuples
        return Recipe(
            method=METHODS[method.pop("name")](**method),
            schedule=SCHEDULES[schedule.pop("name")](**schedule),
            **plain,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"this does not describe a recipe: {error}") from error


RECIPES: Registry[Recipe] = Registry("recipe")


# The paper's T(x): 20 steps on MNIST; its values for the other data sets are the rule's defaults.
_MNIST_T = {"radius": 0.1, "steps": 20, "step_size": 0.01}


def _rule_settings(method: Method) -> Mapping[str, Any]:
    return _MNIST_T if method.rule_name == Consistency.name else {}


def _mnist(method: AdversarialMethod | Standard) -> Recipe:
    return Recipe(
        method=method,
        network="lenet",
        dataset="mnist",
        epochs=100,
        lr=0.1,
        schedule=Decay(rate=0.95),
        rule_settings=_rule_settings(method),
        reject_rate=0.01,
    )


def _svhn(method: AdversarialMethod | Standard) -> Recipe:
    return Recipe(
        method=method,
        network="resnet20-wide",
        dataset="svhn",
        epochs=200,
        lr=0.1,
        schedule=Decay(rate=0.95),
        augmentation="pad-or-contrast",
    )


def _cifar10(method: AdversarialMethod | Standard) -> Recipe:
    return Recipe(
        method=method,
        network="resnet20-wide",
        dataset="cifar10",
        epochs=110,
        lr=0.1,
        nesterov=True,
        weight_decay=5e-4,
        schedule=Milestones(epochs=(100, 105)),
        augmentation="crop-flip",
    )


def _paper() -> dict[str, Recipe]:
    """The appendix's numbers; for methods it does not train AT's, but MART's own lower rate."""
    m: dict[str, Any] = {"eps": 0.3, "steps": 40, "step_size": 0.01}
    c: dict[str, Any] = {"eps": 8 / 255, "steps": 10, "step_size": 2 / 255}
    # CCAT steps 0.005 a time on every data set, 40 times.
    slow: dict[str, Any] = {"steps": 40, "step_size": 0.005}
    # The original setting of TRADES, which the appendix refers to.
    trades: dict[str, Any] = {"eps": 8 / 255, "steps": 10, "step_size": 0.007, "beta": 6.0}
    trades_cifar10 = replace(
        _cifar10(TRADES(**trades)),
        epochs=100,
        nesterov=False,
        weight_decay=2e-4,
        schedule=Milestones(epochs=(75, 90)),
    )
    return {
        "mnist-standard": _mnist(Standard()),
        "mnist-at": _mnist(AT(**m)),
        "mnist-fast-at": _mnist(FastAT(eps=0.3)),
        "mnist-trades": replace(
            _mnist(TRADES(**m, beta=1.0)), lr=0.01, schedule=Milestones(epochs=(55, 75, 90))
        ),
        "mnist-mart": replace(_mnist(MART(**m)), lr=0.01),
        "mnist-ccat": replace(_mnist(CCAT(eps=0.3, **slow)), batch_size=100),
        "mnist-rcd": _mnist(RCD(**m)),
        "mnist-atrr": _mnist(ATRR(**m)),
        "svhn-standard": _svhn(Standard()),
        "svhn-at": _svhn(AT(**c)),
        "svhn-fast-at": _svhn(FastAT(eps=8 / 255)),
        "svhn-trades": replace(
            trades_cifar10, dataset="svhn", augmentation="pad-or-contrast"
        ),  # "the same as that for CIFAR-10", but digits are not mirrored
        "svhn-mart": replace(_svhn(MART(**c)), lr=0.01),
        "svhn-ccat": replace(_svhn(CCAT(eps=8 / 255, **slow)), batch_size=100),
        "svhn-rcd": replace(_svhn(RCD(**c)), lr=0.05),
        "svhn-atrr": _svhn(ATRR(**c)),
        "cifar10-standard": _cifar10(Standard()),
        "cifar10-at": _cifar10(AT(**c)),
        "cifar10-fast-at": _cifar10(FastAT(eps=8 / 255)),
        "cifar10-trades": trades_cifar10,
        "cifar10-mart": replace(_cifar10(MART(**c)), lr=0.01),
        "cifar10-ccat": replace(
            _cifar10(CCAT(eps=8 / 255, **slow)),
            epochs=200,
            batch_size=100,
            lr=0.075,
            nesterov=False,
            weight_decay=0.0,
            schedule=Decay(rate=0.95),
        ),
        "cifar10-rcd": _cifar10(RCD(**c)),
        "cifar10-atrr": _cifar10(ATRR(**c)),
    }


def _published(name: str, recipe: Recipe) -> Recipe | None:
    """What the published code does where it differs from the text, None where it does not."""
    method = recipe.method
    if isinstance(method, TRADES):
        if name == "mnist-trades":
            return None
        # TRADES on CIFAR-10 does not start with the published code; these are its settings.
        change: dict[str, Any] = {"method": replace(method, step_size=2 / 255)}
        if name == "svhn-trades":
            change |= {"epochs": 200, "schedule": Milestones(epochs=(150, 180))}
        return replace(recipe, **change)
    if isinstance(method, AT | RCD | ATRR):
        coded = replace(method, start="ray-or-zero", keep="best")
        return replace(recipe, method=coded, nesterov=False)
    return None


def _compact_mnist() -> dict[str, Recipe]:
    def recipe(method: AdversarialMethod | Standard, **changes: Any) -> Recipe:
        base = Recipe(
            method=method,
            network="lenet-compact",
            dataset="mnist",
            epochs=6,
            lr=0.05,
            schedule=Linear(),
            warmup=1 / 3,
            rule_settings=_rule_settings(method),
            reject_rate=0.01,
        )
        return replace(base, **changes)

    attack: dict[str, Any] = {"eps": 0.3, "steps": 7, "step_size": 0.1}
    return {
        "mnist-compact-standard": recipe(Standard(), epochs=4),
        "mnist-compact-at": recipe(AT(**attack)),
        # The paper's beta of 1 needs its 100 epochs to become robust.
        "mnist-compact-trades": recipe(TRADES(**attack, beta=3.0)),
        "mnist-compact-mart": recipe(MART(**attack)),
        "mnist-compact-ccat": recipe(CCAT(eps=0.3, steps=20, step_size=0.05), warmup=0.0),
        "mnist-compact-rcd": recipe(RCD(**attack)),
        "mnist-compact-atrr": recipe(ATRR(**attack)),
    }


def _compact_cifar10() -> dict[str, Recipe]:
    at = Recipe(
        method=FastAT(eps=8 / 255),
        network="resnet20",
        dataset="cifar10",
        epochs=10,
        lr=0.2,
        # Less than usual: so small a network, seeing each image ten times, underfits.
        weight_decay=2e-4,
        schedule=Linear(rise=0.2),
        warmup=0.2,
        augmentation="crop-flip",
    )
    return {"cifar10-compact-at": at}


for _name, _recipe in (_paper() | _compact_mnist() | _compact_cifar10()).items():
    RECIPES.register(_name)(_recipe)
for _name, _recipe in _paper().items():
    _coded = _published(_name, _recipe)
    if _coded is not None:
        RECIPES.register(f"{_name}-published")(_coded)
