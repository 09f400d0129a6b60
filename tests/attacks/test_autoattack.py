"""AutoAttack both ways: what it finds, what it costs, what it leaves behind."""

from __future__ import annotations

import random
import sys
import warnings

import numpy as np
import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack

from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.meter import count_passes
from cpr_wrap.rules import AcceptAll, Confidence, CPRWrapper
from cpr_wrap.selective import REJECT, SelectiveClassifier
from tests.attacks.making import CLASSES, RULES, both_ways, broken, curved, images, run
from tests.toys import Curved, Linear, Plane, pixels

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
def test_starts_are_on_the_surface_of_the_threat(way, monkeypatch):
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
