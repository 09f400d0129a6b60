"""Curves with points and all their evidence in the shape an evaluation gives them."""

from __future__ import annotations

import math
from dataclasses import fields

import torch

from cpr_wrap.metrics import Records, RobustnessCurve
from cpr_wrap.metrics.evidence import (
    AblationRow,
    About,
    CalibrationFacts,
    Check,
    Points,
    Provenance,
    RuleFacts,
    Settings,
    StageCost,
)
from tests.metrics.making import make

INF = math.inf
RADIUS = 0.1


def plain(outer=(INF, INF, 0.1, 0.0), rejected=(0.05, 0.2, INF, INF), eps=0.2, **more):
    """A curve of few images with known distances, and nothing else unless given."""
    return RobustnessCurve(make(outer, rejected, eps=eps), **told(more))


def _names(found, names):
    return tuple(
        names[row % len(names)] if math.isfinite(d) and d > 0 else "clean" if d == 0 else ""
        for row, d in enumerate(found)
    )


def full_records(count=60, eps=0.3, seed=0, weakness=1.0):
    """Records of a rule that is nearly ideal, with distances to the boundary."""
    random = torch.Generator().manual_seed(seed)
    boundary = torch.rand(count, generator=random, dtype=torch.float64).pow(0.6) * 0.6 / weakness
    label = torch.randint(10, (count,), generator=random)
    base = label.clone()
    wrong = torch.arange(count) % 23 == 5
    base[wrong] = (label[wrong] + 1) % 10
    clean = torch.where(boundary <= RADIUS * 0.3, -1, base)
    luck = torch.rand(count, generator=random, dtype=torch.float64)
    mistake = torch.where((boundary < eps - RADIUS) & (luck < 0.6), boundary + RADIUS, INF)
    accepted_wrong = (clean != -1) & (clean != label)
    mistake = torch.where(accepted_wrong, 0.0, mistake)
    rejected = (boundary - RADIUS * (0.7 + 0.3 * luck)).clamp_min(1e-3)
    rejected = torch.where(clean == -1, 0.0, torch.where(rejected > eps, INF, rejected))
    return Records(
        index=torch.arange(count),
        label=label,
        clean_label=clean,
        outer_broken=mistake.isfinite(),
        outer_distance=mistake,
        outer_by=_names(mistake.tolist(), ("CHCMOA", "HCMOA", "AutoAttack")),
        rejected_radius=rejected,
        rejected_by=_names(rejected.tolist(), ("halving", "PDIA", "CLCIA", "LCIA")),
        boundary_distance=torch.where(boundary > eps + RADIUS, INF, boundary),
        base_label=base,
        eps=eps,
        norm="Linf",
    )


def some_points(records, images=None, seed=0):
    """Points at about the recorded distances, on noise unless images are given."""
    random = torch.Generator().manual_seed(seed)
    clean = torch.rand(len(records), 1, 8, 8, generator=random) if images is None else images
    points = {"clean": clean}
    for name, distance in (
        ("outer", records.outer_distance),
        ("rejected", records.rejected_radius),
    ):
        sign = torch.randint(0, 2, clean.shape, generator=random) * 2 - 1
        step = torch.where(distance.isfinite(), distance, 0.0).float()
        points[name] = (clean + step[:, None, None, None] * sign).clip(0, 1)
    return Points(**points)


ATTACKS = ("halving", "HCMOA", "CHCMOA", "AutoAttack", "LCIA", "CLCIA", "PDIA")


def told(more):
    """Keywords as a curve takes them; those of `About` go there."""
    names = {f.name for f in fields(About)}
    about = About(**{k: v for k, v in more.items() if k in names})
    return {"about": about, **{k: v for k, v in more.items() if k not in names}}


def rule(**changes):
    """A consistency check, as a result describes it."""
    facts = {
        "name": "cpr",
        "settings": {"threshold": 0.0, "radius": RADIUS, "steps": 20, "step_size": 0.01},
        "text": f"cpr radius {RADIUS:g}, 20 steps of 0.01",
        "norm": "Linf",
        "reach": RADIUS,
        "forwards": 21,
        "backwards": 20,
        "rejects_near_boundary": True,
    }
    return RuleFacts(**facts | changes)


def settings(eps=0.3, **changes):
    """How an evaluation was run."""
    return Settings(
        **{
            "budget": "standard",
            "rule": rule(),
            "eps": eps,
            "norm": "Linf",
            "seed": 0,
            "batch_size": 256,
            "block_size": 500,
            "stages": ATTACKS,
        }
        | changes
    )


def stage(attack, forwards, backwards, seconds, found_outer=0, found_rejected=0):
    return StageCost(
        attack=attack,
        forwards=forwards,
        backwards=backwards,
        seconds=seconds,
        found_outer=found_outer,
        found_rejected=found_rejected,
    )


def full_details(name="AT+CPR", eps=0.3, **more):
    """All that an evaluation and its command write down, as a curve's keywords."""
    alone = (
        ("HCMOA", "outer", 0.0, 0.81),
        ("CHCMOA", "outer", 0.0, 0.74),
        ("PDIA", "inner", 1.0, 0.123),
    )
    checks = (
        ("more iterations find no fewer errors", True, "7 >= 7"),
        ("a black-box attack is not stronger", False, "2 > 1"),
        ("planted examples are found", None, "not run"),
    )
    details = {
        "name": name,
        "model": "bundled:mnist-at",
        "dataset": "mnist",
        "command": f"cpr-wrap curve bundled:mnist-at --eps 0.3 --name {name}",
        "clean_test": {"images": 9000, "accuracy_with_rejection": 0.9934, "rejection_rate": 0.0199},
        "settings": settings(eps),
        "provenance": Provenance(
            versions={"cpr_wrap": "0.1.0", "torch": "2.15.0", "python": "3.11.7"},
            engine=1,
            weights="3f" * 32,
            data="a0" * 32,
            notes=("The rejection radii of broken images were not searched further.",),
        ),
        "passes": tuple(
            stage(attack, 12_345 * k, 11_000 * k, 2.5 * k, k - 1, 2 * k - 2)
            for k, attack in enumerate(ATTACKS, start=1)
        ),
        "ablation": tuple(
            AblationRow(
                attack=attack,
                goal=goal,
                alpha=alpha,
                robustness=robustness,
                lost=(1, 2),
                found=2,
                passes_per_image=20.0,
            )
            for attack, goal, alpha, robustness in alone
        ),
        "checks": tuple(Check(name=n, passed=p, detail=d) for n, p, d in checks),
        "calibration": CalibrationFacts(
            before={"name": "cpr", "radius": 0.05},
            after={"name": "cpr", "radius": RADIUS},
            reject_rate=0.01,
            measured_rate=0.011,
            low=0.005,
            high=0.02,
            num_rejected=11,
            num_correct=990,
            num_images=1000,
            overall_rate=0.012,
            reached=True,
        ),
    }
    return told(details | more)


def full_curve(name="AT+CPR", *, count=60, eps=0.3, seed=0, weakness=1.0, images=None, **more):
    """A curve with everything."""
    records = full_records(count, eps, seed, weakness)
    details = full_details(name, eps, **{"points": some_points(records, images)} | more)
    return RobustnessCurve(records, **details)
