"""AutoAttack both ways, with both of its packages."""

from __future__ import annotations

import importlib.util
import random
import sys
import warnings
from types import ModuleType

import numpy as np
import pyautoattack
import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack

from cpr_wrap.attacks.autoattack import VERSIONS, AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.attacks.groups import Group
from cpr_wrap.meter import count_passes
from cpr_wrap.rules import AcceptAll, Confidence, CPRWrapper, RectifiedConfidence, RejectClass
from cpr_wrap.selective import REJECT, SelectiveClassifier
from tests.toys import Curved, Linear, Plane, pixels

CLASSES = 5
both_ways = pytest.mark.parametrize("way", [AutoAttackOnBase, AdaptiveAutoAttack])
RULES = {
    "confidence": Confidence(threshold=0.8),
    "rcd": RejectClass(),
    "atrr": RectifiedConfidence(threshold=0.4),
    "none": AcceptAll(),
}


def curved(rule="confidence", classes=CLASSES):
    if rule == "cpr":
        return CPRWrapper(Curved(classes), radius=0.05, steps=3, step_size=0.02)
    chosen = RULES[rule]
    return SelectiveClassifier(Curved(classes + chosen.extra_outputs), chosen)


def images(model, count=10):
    """Images and the classes that the network gives them."""
    x = pixels(count)
    return x, model.logits(x).argmax(dim=1)


def run(attack, model, x, y, eps=0.2, *, norm="Linf", seed=0, index=None):
    index = torch.arange(len(x)) if index is None else index
    return attack.perturb(model, x, y, eps, norm=norm, seed=seed, index=index)


def broken(model, points, y):
    labels = model.predict(points.clamp(0, 1))
    return (labels != REJECT) & (labels != y)


class FromGit(ModuleType):
    """The package `autoattack`, as far as its signature goes; its attacks are pyautoattack's."""

    def __init__(self) -> None:
        super().__init__("autoattack")
        self.made = []

    def AutoAttack(
        self,
        model,
        norm="Linf",
        eps=0.3,
        seed=None,
        verbose=True,
        attacks_to_run=[],  # noqa: B006
        version="standard",
        is_tf_model=False,
        device="cuda",
        log_path=None,
    ):
        whole = ModuleType("adversary")
        settings = {"eps": eps, "norm": norm, "seed": seed, "device": device}
        whole.apgd = APGDAttack(model, n_restarts=5, n_iter=100, **settings)
        whole.apgd_targeted = APGDAttack_targeted(model, n_restarts=1, n_iter=100, **settings)
        whole.fab = FABAttack_PT(model, n_restarts=5, n_iter=100, **settings)
        whole.square = SquareAttack(model, n_queries=5000, resc_schedule=False, **settings)
        assert version == "standard"
        whole.apgd.n_restarts = whole.fab.n_restarts = 1
        print(f"setting parameters for {version} version")
        self.made.append({"version": version, "attacks_to_run": attacks_to_run, **settings})
        return whole


@pytest.fixture
def from_git(monkeypatch):
    package = FromGit()
    monkeypatch.setitem(sys.modules, "autoattack", package)
    return package


# The goal


@pytest.mark.parametrize("rule", ["cpr", *RULES])
@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_the_adaptive_way_proposes_accepted_mistakes_or_the_image(rule, norm):
    model = curved(rule)
    x, y = images(model)
    points = run(AdaptiveAutoAttack(n_iter=8, n_targets=2), model, x, y, 0.3, norm=norm)
    changed = (points != x).flatten(1).any(dim=1)
    assert changed.any()
    assert torch.equal(broken(model, points, y), changed)


@pytest.mark.parametrize("rule", ["cpr", "confidence"])
def test_the_adaptive_way_breaks_what_the_base_way_does_not(rule):
    model = curved(rule)
    x, y = images(model, 16)
    on_base = broken(model, run(AutoAttackOnBase(version="small"), model, x, y), y)
    adaptive = broken(model, run(AdaptiveAutoAttack(), model, x, y), y)
    assert (adaptive & ~on_base).sum() >= 2
    assert adaptive.sum() > on_base.sum()


def test_fed_k_plus_1_columns_autoattack_counts_rejections_and_through_our_view_never():
    model = curved("confidence")
    x, y = images(model)
    standing = model.predict(x) == y
    x, y = x[standing].float(), y[standing]
    settings = {"n_iter": 10, "eps": 0.1, "device": "cpu"}
    model.base.float()
    naive = APGDAttack(model.as_logits("reject-column"), **settings).perturb(x, y)
    claimed = (naive != x).flatten(1).any(dim=1)
    assert (model.predict(naive)[claimed] == REJECT).all()
    assert claimed.any()
    points = run(AdaptiveAutoAttack(n_iter=10), model, x, y, 0.1)
    assert not (model.predict(points)[(points != x).flatten(1).any(dim=1)] == REJECT).any()


@pytest.mark.parametrize(("norm", "length"), [("Linf", 1.4), ("L2", 1.0)])
def test_the_adaptive_way_reaches_exactly_what_the_plane_allows(norm, length):
    # T moves back by the radius, so a mistake passes from distance + radius on.
    model = CPRWrapper(Plane(), radius=0.05, steps=5, step_size=0.02, norm=norm)
    x = torch.tensor([[0.6, 0.2], [0.5, 0.35], [0.45, 0.4], [0.5, 0.45], [0.4, 0.55]]).double()
    y = torch.zeros(5, dtype=torch.int64)
    needed = -Plane.distance(x) / length + 0.05
    eps = 0.15
    assert 0 < (needed < eps).sum() < 5
    attack = AdaptiveAutoAttack(components=("apgd-ce",), n_iter=10)
    points = run(attack, model, x, y, eps, norm=norm)
    assert torch.equal(broken(model, points, y), needed < eps)


def test_rejected_mistakes_are_attacked_and_accepted_ones_are_not():
    model = curved("confidence")
    x, _ = images(model, 30)
    labels, predicted = model.predict(x), model(x).predicted
    y = (predicted + 1) % CLASSES
    accepted = labels != REJECT
    points = run(AdaptiveAutoAttack(n_iter=5, n_targets=1), model, x, y)
    assert torch.equal(points[accepted], x[accepted])
    assert (points[~accepted] != x[~accepted]).any()
    on_base = run(AutoAttackOnBase(version="small"), model, x, y)
    assert torch.equal(on_base, x)  # the network is wrong already


# The packages


@both_ways
@pytest.mark.parametrize("component", ["apgd-ce", "apgd-t", "fab-t"])
def test_both_packages_give_the_same_points(way, component, from_git):
    model = curved("cpr")
    x, y = images(model, 4)
    settings = {"components": (component,), "n_iter": 3, "n_targets": 1}
    ours = run(way(package="pyautoattack", **settings), model, x, y)
    theirs = run(way(package="autoattack", **settings), model, x, y)
    assert from_git.made
    assert all(made["attacks_to_run"] == [] for made in from_git.made)
    assert {made["device"] for made in from_git.made} == {torch.device("cpu")}
    assert torch.equal(ours, theirs)


def test_whichever_package_is_installed_is_used(from_git, monkeypatch):
    model = curved()
    x, y = images(model, 4)
    run(AutoAttackOnBase(components=("apgd-ce",), n_iter=2), model, x, y)
    assert not from_git.made
    found = {"autoattack": object(), "pyautoattack": None}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    run(AutoAttackOnBase(components=("apgd-ce",), n_iter=2), model, x, y)
    assert from_git.made


def test_without_any_package_the_error_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    model = curved()
    with pytest.raises(ModuleNotFoundError, match="pip install pyautoattack"):
        run(AutoAttackOnBase(), model, *images(model, 2))


def component(attack, name):
    """One of AutoAttack's attacks as it will be run on ten classes."""
    number = torch.zeros(1, dtype=torch.int64)
    group = Group(curved(), pixels(1), number, number, 0.3, "Linf", 0)
    return attack._component(pyautoattack, name, torch.nn.Identity(), group, 10)


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_versions_are_the_package_s_own(version):
    whole = pyautoattack.AutoAttack(torch.nn.Identity(), version=version)
    assert VERSIONS[version].components == tuple(whole.attacks_to_run)
    for name in VERSIONS[version].components:
        made = component(AutoAttackOnBase(version=version), name)
        own = getattr(whole, {"apgd-t": "apgd_targeted"}.get(name, name.split("-")[0]))
        for setting in ("n_iter", "n_restarts", "n_target_classes", "n_queries"):
            if (name, setting) != ("fab-t", "n_restarts"):
                assert getattr(made, setting, None) == getattr(own, setting, None)


def test_components_are_set_up_for_what_their_names_say():
    attack = AutoAttackOnBase(version="plus")
    assert component(attack, "apgd-ce").loss == "ce"
    assert component(attack, "apgd-dlr").loss == "dlr"
    assert component(attack, "apgd-t").loss == "dlr-targeted"
    assert not component(attack, "fab").targeted
    assert component(attack, "fab-t").targeted
    assert component(attack, "fab-t").n_restarts == 1


def test_settings_reach_the_components():
    attack = AutoAttackOnBase(n_iter=50, n_restarts=3, n_targets=4, n_queries=7)
    for name in ("apgd-ce", "apgd-t", "fab-t"):
        made = component(attack, name)
        assert (made.n_iter, made.n_restarts) == (50, 3)
    for name in ("apgd-t", "fab-t"):
        assert component(attack, name).n_target_classes == 4
    assert component(attack, "square").n_queries == 7
    # APGD looks at its step size for the first time after 22 % of the iterations.
    assert component(attack, "apgd-ce").n_iter_2 == 11
    assert component(AutoAttackOnBase(version="small"), "apgd-t").n_target_classes == 3


# What it costs


@both_ways
def test_small_stays_below_200_passes_of_a_model_that_cannot_be_broken(way):
    sure = Linear(torch.zeros(5, 4), [9.0, 0, 0, 0, 0])
    model = SelectiveClassifier(sure, Confidence(threshold=0.5))
    x = pixels(3)
    with count_passes() as passes:
        points = run(way(version="small"), model, x, torch.zeros(3, dtype=torch.int64))
    assert torch.equal(points, x)
    climb = 21 * 2  # a start and 20 iterations, forward and backward
    judged = 1 + 1 + 1  # the image, and what each component found
    assert passes.total == 3 * (judged + (1 + climb) + (1 + 3 * (1 + climb)))
    assert passes.total < 3 * 200


def test_broken_images_are_not_attacked_again():
    easy = SelectiveClassifier(Curved(CLASSES), AcceptAll())
    x, y = images(easy, 8)
    with count_passes() as first:
        points = run(AutoAttackOnBase(components=("apgd-ce",), n_iter=10), easy, x, y, 0.5)
    assert broken(easy, points, y).all()
    with count_passes() as all_of_it:
        run(AutoAttackOnBase(version="small", n_iter=10), easy, x, y, 0.5)
    assert all_of_it.total == first.total


# Few classes, small images


@both_ways
@pytest.mark.parametrize(
    ("classes", "instead"), [(2, "apgd-ce takes its place"), (3, "apgd-dlr takes its place")]
)
def test_with_fewer_than_four_classes_it_says_so_and_uses_what_works(way, classes, instead):
    model = curved("confidence", classes)
    x, y = images(model, 6)
    attack = way(version="standard", n_iter=5, n_queries=5)
    with pytest.warns(UserWarning, match=instead):
        points = run(attack, model, x, y, 0.4)
    assert (points != x).any()
    plan = attack.plan(classes, (1, 2, 2), "Linf")
    assert "apgd-t" not in plan.components
    assert len(plan.notes) == 1


def test_plans_have_no_component_twice_and_no_needless_notes():
    assert AutoAttackOnBase().plan(10, (3, 32, 32), "L2") == (
        ("apgd-ce", "apgd-t", "fab-t", "square"),
        (),
    )
    few = AutoAttackOnBase(version="plus").plan(2, (3, 32, 32), "Linf")
    assert few.components == ("apgd-ce", "fab", "square", "fab-t")
    assert len(few.notes) == 2


@pytest.mark.parametrize(("norm", "shape"), [("Linf", (4,)), ("L2", (1, 4, 4)), ("L2", (16,))])
def test_square_is_left_out_where_it_cannot_run(norm, shape):
    plan = AutoAttackOnBase().plan(10, shape, norm)
    assert "square" not in plan.components
    assert "left out" in plan.notes[0]
    assert "square" in AutoAttackOnBase().plan(10, (1, 5, 5), norm).components


def test_targets_are_at_most_all_the_others(monkeypatch):
    seen = {}

    def watch(cls):
        original = cls.perturb

        def perturb(self, x, y):
            seen[cls] = self.n_target_classes
            return original(self, x, y)

        monkeypatch.setattr(cls, "perturb", perturb)

    watch(APGDAttack_targeted)
    watch(FABAttack_PT)
    model = curved(classes=4)
    attack = AutoAttackOnBase(components=("apgd-t", "fab-t"), n_iter=2)
    run(attack, model, *images(model, 4), 0.01)
    assert seen == {APGDAttack_targeted: 3, FABAttack_PT: 3}


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("component", VERSIONS["plus"].components)
def test_every_component_runs(component, norm):
    network = Curved(CLASSES, pixels=25)
    model = SelectiveClassifier(network, Confidence(threshold=0.8))
    x = pixels(4, 1, 5, 5)
    y = model.logits(x).argmax(dim=1)
    attack = AdaptiveAutoAttack(components=(component,), n_iter=4, n_queries=10)
    points = run(attack, model, x, y, 1.0, norm=norm)
    changed = (points != x).flatten(1).any(dim=1)
    assert changed.any()
    assert torch.equal(broken(model, points, y), changed)


# Randomness and traces


@both_ways
def test_points_depend_on_seed_and_image_and_not_on_the_batch(way):
    model = curved("confidence")
    x, y = images(model, 6)
    attack = way(version="small", n_iter=3, n_restarts=2)
    whole = run(attack, model, x, y, 0.3)
    assert torch.equal(run(attack, model, x, y, 0.3), whole)
    index = torch.arange(6)
    halves = [run(attack, model, x[h], y[h], 0.3, index=index[h]) for h in index.split(4)]
    assert torch.equal(torch.cat(halves), whole)
    assert not torch.equal(run(attack, model, x, y, 0.3, seed=1), whole)
    assert not torch.equal(run(attack, model, x, y, 0.3, index=index + 6), whole)


def test_square_gives_the_same_points_for_the_same_batch():
    model = SelectiveClassifier(Curved(CLASSES, pixels=25), Confidence(threshold=0.6))
    x = pixels(4, 1, 5, 5)
    y = model.logits(x).argmax(dim=1)
    attack = AdaptiveAutoAttack(components=("square",), n_queries=10)
    points = run(attack, model, x, y, 0.6)
    torch.manual_seed(123)
    assert torch.equal(run(attack, model, x, y, 0.6), points)
    assert not torch.equal(run(attack, model, x, y, 0.6, seed=1), points)


@both_ways
def test_starts_are_on_the_surface_of_the_ball(way, monkeypatch):
    starts = []
    original = APGDAttack.attack_single_run

    def watch(self, x, y, x_init=None):
        starts.append((x_init - x).flatten(1))
        return original(self, x, y, x_init)

    monkeypatch.setattr(APGDAttack, "attack_single_run", watch)
    model = curved()
    x, y = images(model, 8)
    for norm, p in (("Linf", torch.inf), ("L2", 2)):
        starts.clear()
        run(way(components=("apgd-ce",), n_iter=2, n_restarts=2), model, x, y, 0.1, norm=norm)
        lengths = torch.cat(starts).norm(p=p, dim=1)
        assert torch.allclose(lengths, torch.full_like(lengths, 0.1))
        assert len(torch.cat(starts).unique(dim=0)) == len(lengths)


@both_ways
def test_nothing_of_the_caller_s_is_touched(way, from_git, capsys):
    model = curved("confidence")
    x, y = images(model, 4)
    before = x.clone(), torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    settings = {"n_iter": 2, "n_queries": 2, "version": "standard", "package": "autoattack"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(way(**settings), model, x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.array_equal(np.random.get_state()[1], before[2])
    assert random.getstate() == before[3]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert capsys.readouterr().out == ""
    run(way(verbose=True, **settings), model, x, y)
    assert "standard version" in capsys.readouterr().out


def test_a_debugger_keeps_its_trace_function():
    def trace(frame, event, arg):
        return None

    model = curved()
    x, y = images(model, 2)
    old = sys.gettrace()
    sys.settrace(trace)
    try:
        run(AutoAttackOnBase(components=("apgd-ce",), n_iter=2), model, x, y)
        kept = sys.gettrace()
    finally:
        sys.settrace(old)
    assert kept is trace


def test_runs_in_inference_mode_on_strided_images():
    model = curved("cpr")
    x, y = images(model, 4)
    attack = AdaptiveAutoAttack(components=("apgd-ce",), n_iter=4)
    expected = run(attack, model, x, y)
    strided = x.transpose(2, 3).contiguous().transpose(2, 3)
    assert not strided.is_contiguous()
    with torch.inference_mode():
        assert torch.equal(run(attack, model, strided.clone(), y), expected)


# Settings


def test_names_say_the_version():
    assert AutoAttackOnBase().name == "AutoAttack"
    assert AutoAttackOnBase(version="small").name == "AutoAttack-small"
    assert AdaptiveAutoAttack().name == "adaptive AutoAttack-small"
    assert AdaptiveAutoAttack(version="standard").name == "adaptive AutoAttack"


@both_ways
def test_without_a_budget_the_images_come_back(way):
    model = curved()
    x, y = images(model, 3)
    points = run(way(), model, x, y, 0.0)
    assert torch.equal(points, x)
    assert points is not x


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"version": "smal"}, LookupError, "unknown version of AutoAttack 'smal'.*'small'"),
        ({"components": ("apgd",)}, ValueError, "components: expected names among apgd-ce"),
        ({"components": ()}, ValueError, "components: expected at least one"),
        ({"n_iter": 0}, ValueError, "n_iter: expected at least 1, got 0"),
        ({"n_restarts": 0}, ValueError, "n_restarts: expected at least 1"),
        ({"n_targets": -1}, ValueError, "n_targets: expected at least 1"),
        ({"n_queries": 0}, ValueError, "n_queries: expected at least 1"),
        ({"package": "torchattacks"}, ValueError, "package: expected auto, pyautoattack or"),
    ],
)
def test_settings_are_checked(settings, error, text):
    with pytest.raises(error, match=text):
        AutoAttackOnBase(**settings)


def test_inputs_are_checked():
    model = curved()
    x, y = images(model, 3)
    with pytest.raises(LookupError, match="unknown norm 'L7'"):
        run(AutoAttackOnBase(), model, x, y, norm="L7")
    with pytest.raises(ValueError, match="eps: expected a finite number"):
        run(AutoAttackOnBase(), model, x, y, -1.0)
    with pytest.raises(ValueError, match="y: expected one label for each"):
        run(AutoAttackOnBase(), model, x, y[:2])
