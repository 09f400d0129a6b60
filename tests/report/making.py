"""Curves with details and points in the shape an evaluation gives them."""

from __future__ import annotations

import math

import torch

from cpr_wrap.metrics import PAPER_ALPHAS, Records, RobustnessCurve
from tests.metrics.making import make

INF = math.inf
RADIUS = 0.1


def plain(outer=(INF, INF, 0.1, 0.0), rejected=(0.05, 0.2, INF, INF), eps=0.2, **details):
    """A curve of few images with known distances, and no details unless given."""
    return RobustnessCurve(make(outer, rejected, eps=eps), details=details)


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
    return points


def full_details(name="AT+CPR", **more):
    """All that an evaluation and its command write down."""
    attacks = ("halving", "HCMOA", "CHCMOA", "AutoAttack", "LCIA", "CLCIA", "PDIA")
    return {
        "name": name,
        "model": "bundled:mnist-at",
        "dataset": "mnist",
        "command": ["cpr-wrap", "curve", "bundled:mnist-at", "--eps", "0.3", "--name", name],
        "settings": {
            "rule": {
                "name": "cpr",
                "threshold": 0.0,
                "radius": RADIUS,
                "steps": 20,
                "step_size": 0.01,
                "norm": "Linf",
                "keep": "last",
            },
            "eps": 0.3,
            "norm": "Linf",
            "budget": "standard",
            "seed": 0,
            "alphas": list(PAPER_ALPHAS),
            "batch_size": 256,
            "device": "cpu",
            "stages": list(attacks),
        },
        "versions": {"cpr_wrap": "0.1.0", "torch": "2.15.0", "python": "3.11.7"},
        "digests": {"weights": "3f" * 32, "data": "a0" * 32},
        "passes": [
            {
                "attack": attack,
                "forwards": 12_345 * (place + 1),
                "backwards": 11_000 * (place + 1),
                "seconds": 2.5 * (place + 1),
                "found_outer": place,
                "found_rejected": 2 * place,
            }
            for place, attack in enumerate(attacks)
        ],
        "passes_total": {"forwards": 345_660, "backwards": 308_000, "per_image": 5447.2},
        "theory": None,
        "notes": ["The rejection radii of broken images were not searched further."],
        "ablation": [
            {"attack": "HCMOA", "goal": "outer", "robustness": 0.81},
            {"attack": "CHCMOA", "goal": "outer", "robustness": 0.74},
            {"attack": "PDIA", "goal": "inner", "robustness": 0.123},
        ],
        "audit": [
            {"name": "more iterations find no fewer errors", "passed": True, "detail": "7 >= 7"},
            {"name": "a black-box attack is not stronger", "passed": False, "detail": "2 > 1"},
            {"name": "planted examples are found", "passed": None, "detail": "not run"},
        ],
        "clean_test": {"images": 9000, "accuracy_with_rejection": 0.9934, "rejection_rate": 0.0199},
        "calibration": {"radius": RADIUS, "reject_rate": 0.01},
        **more,
    }


def full_curve(name="AT+CPR", *, count=60, eps=0.3, seed=0, weakness=1.0, images=None, **more):
    """A curve with everything."""
    records = full_records(count, eps, seed, weakness)
    details = full_details(name, points=some_points(records, images), **more)
    details["settings"] = {**details["settings"], "eps": eps}
    return RobustnessCurve(records, details=details)
