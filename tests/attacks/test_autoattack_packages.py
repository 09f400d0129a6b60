"""How AutoAttack's two packages are called: components, plans, settings."""

from __future__ import annotations

import importlib.util
import sys

import pyautoattack
import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT

from cpr_wrap.attacks.autoattack import VERSIONS, AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.attacks.guests import Group
from cpr_wrap.rules import Confidence
from cpr_wrap.selective import SelectiveClassifier
from tests.attacks.making import CLASSES, both_ways, broken, curved, images, run
from tests.toys import Curved, pixels

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
    return attack._component(pyautoattack, name, group, 10)


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


@pytest.mark.parametrize("name", ["apgd-ce", "apgd-dlr", "apgd-t"])
def test_climbs_are_those_of_the_package_but_for_their_starts(name, monkeypatch):
    model = curved("none")
    x, y = images(model, 12)
    group = Group(model, x.float(), y, torch.arange(12), 0.05, "Linf", 0)
    monkeypatch.setattr(Group, "start", lambda self, x, name, turn: x.clone())
    attack = AutoAttackOnBase(n_iter=5, n_restarts=2, n_targets=3)
    ours = attack._component(pyautoattack, name, group, CLASSES)
    theirs = attack._component(pyautoattack, name, group, CLASSES)
    single = theirs.attack_single_run
    theirs.attack_single_run = lambda x, y: single(x, y, x_init=x.clone())
    found = theirs.perturb(group.x, y)
    assert 0 < (found != group.x).flatten(1).any(dim=1).sum() < 12
    assert torch.equal(attack._climb(ours, group, name), found)


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
        original = cls.attack_single_run

        def attack_single_run(self, *args, **kwargs):
            seen[cls] = self.n_target_classes
            return original(self, *args, **kwargs)

        monkeypatch.setattr(cls, "attack_single_run", attack_single_run)

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
        ({"n_iter": 0}, ValueError, "n_iter: expected a whole number of at least 1, got 0"),
        ({"n_restarts": 0}, ValueError, "n_restarts: expected a whole number of at least 1"),
        ({"n_targets": -1}, ValueError, "n_targets: expected a whole number of at least 1"),
        ({"n_queries": 0}, ValueError, "n_queries: expected a whole number of at least 1"),
        ({"package": "torchattacks"}, ValueError, "package: expected auto, pyautoattack or"),
    ],
)
def test_settings_are_checked(settings, error, text):
    with pytest.raises(error, match=text):
        AutoAttackOnBase(**settings)


def test_inputs_are_checked():
    model = curved()
    x, y = images(model, 3)
    with pytest.raises(LookupError, match="unknown threat model 'L7'"):
        run(AutoAttackOnBase(), model, x, y, norm="L7")
    with pytest.raises(ValueError, match="eps: expected a finite number"):
        run(AutoAttackOnBase(), model, x, y, -1.0)
    with pytest.raises(ValueError, match="y: expected one label for each"):
        run(AutoAttackOnBase(), model, x, y[:2])
