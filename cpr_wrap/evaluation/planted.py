"""Plants adversarial inputs that must be found, in the manner of Zimmermann et al. (2022).

For each image a new two-class problem is put on top of the network: the gap between two of its
logits, with a bias. A long plain ascent of the gap makes the plant, and the bias is set so that the
whole selective classifier, consistency check and all, accepts the image as class 0 and the plant as
class 1, with little to spare. So an accepted mistake exists in the ball, most of the ball has none,
and an ensemble that does not find one is too weak.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap.attacks.adaptive import Attack, Halving
from cpr_wrap.attacks.ensemble import Standard
from cpr_wrap.engine.block import Block, rank_targets
from cpr_wrap.engine.stages import run_stage
from cpr_wrap.evaluation.preflight import num_classes
from cpr_wrap.geometry import threat
from cpr_wrap.objective import Goal
from cpr_wrap.rule import ByQuantile
from cpr_wrap.selective import SelectiveClassifier
from cpr_wrap.solver import PGD, ascend

_STEPS = 100  # of the ascent that makes a plant; attacks get far fewer
_HARDNESS = 0.8  # where the bias lies between the image's side (0) and the plant's (1)
_LEAD = 8.0  # of class 1 at the plant, in logits
_TRIES = 50  # random points: a plant that they find says nothing about an attack


class Planted(NamedTuple):
    """Problems with a plant, those that the ensemble solved, and those that random points did."""

    planted: int
    found: int
    by_chance: int


class Readout(nn.Module):
    """Two logits from a linear readout of a network's outputs, with the extra columns kept."""

    def __init__(self, base: nn.Module, weight: Tensor, bias: Tensor, extra: int) -> None:
        super().__init__()
        self.base, self.extra = base, extra
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `(N, 2 + extra)`."""
        outputs = self.base(x)
        keep = outputs.shape[1] - self.extra
        lead = outputs[:, :keep] @ self.weight - self.bias
        two = torch.stack([-lead / 2, lead / 2], dim=1)
        return torch.cat([two, outputs[:, keep:]], dim=1)


def plant(
    model: SelectiveClassifier, x: Tensor, y: Tensor, eps: float, *, norm: str, seed: int = 0
) -> Planted:
    """Plant an adversarial input for each image `(N, ...)` answered right, and look for it."""
    planted = found = by_chance = 0
    if model.rule.modules():
        return Planted(0, 0, 0)  # they know the old classes alone
    right = model.judge(x).labels == y
    for row in right.nonzero().flatten().tolist():
        image = x[row : row + 1]
        binary = _plant_one(model, image, int(y[row]), eps, norm, seed + row)
        if binary is not None:
            planted += 1
            found += _search(binary, image, eps, norm, seed)
            by_chance += _stumble(binary, image, eps, norm, seed)
    return Planted(planted, found, by_chance)


def _plant_one(
    model: SelectiveClassifier, x: Tensor, y: int, eps: float, norm: str, seed: int
) -> SelectiveClassifier | None:
    """A binary problem with a valid plant, or None if the gap leaves no room for one."""
    classes = num_classes(model, x)
    other = int(noise.keys(seed, 1) % (classes - 1))
    weight = torch.zeros(classes, dtype=x.dtype, device=x.device)
    weight[y] = -1
    weight[other + (other >= y)] = 1

    def gap(z: Tensor) -> Tensor:
        return model.logits(z) @ weight

    pgd = PGD(steps=_STEPS, step_size=eps / 10, norm=norm, keep="best")
    key = noise.keys(seed, torch.ones(1, dtype=torch.int64, device=x.device))
    point = ascend(gap, x, eps, pgd, start=x + threat(norm).random_offset(x, eps, key))
    point = threat(norm).project_strictly(point, x, eps)
    pair = torch.cat([x, point])
    with torch.no_grad():
        low, high = gap(pair).tolist()
    if high <= low:
        return None
    # What the rule sees at the end of its path: the image's gap at its worst, the plant's too.
    halfway = _binary(model, weight, (low + high) / 2, 1.0)
    with torch.no_grad():
        seen = halfway.look(pair, path=(1.0,)).points
        low, safe = gap(seen[-1] if seen else pair).tolist()
    if safe <= low:
        return None
    bias = low + _HARDNESS * (safe - low)
    binary = _relaxed(_binary(model, weight, bias, _LEAD / (high - bias)), pair)
    return binary if binary.judge(pair).labels.tolist() == [0, 1] else None


def _binary(
    model: SelectiveClassifier, weight: Tensor, bias: float, scale: float
) -> SelectiveClassifier:
    extra = model.rule.extra_outputs
    base = Readout(model.base, weight * scale, torch.as_tensor(bias * scale).to(weight), extra)
    return SelectiveClassifier(base, model.rule)


def _relaxed(binary: SelectiveClassifier, pair: Tensor) -> SelectiveClassifier:
    """Lower a score's threshold until image and plant pass: it was set for other outputs."""
    if not isinstance(binary.rule.calibrated_by, ByQuantile):
        return binary
    least = float(binary.judge(pair).score.min())
    threshold = min(binary.rule.threshold, least - 0.02 * abs(least))
    return binary.with_rule(replace(binary.rule, threshold=threshold))


def _search(binary: SelectiveClassifier, x: Tensor, eps: float, norm: str, seed: int) -> bool:
    y = torch.zeros(1, dtype=torch.int64, device=x.device)
    block = Block(binary, x, y, y, eps=eps, norm=norm, batch_size=16)
    block.judge_clean()
    rank_targets(block, 9)
    for stage in Standard().stages(binary.rule, eps):
        outer = isinstance(stage, Attack) and stage.goal is Goal.ACCEPTED_MISTAKE
        if outer or not isinstance(stage, Attack | Halving):
            run_stage(block, stage, seed)
        if bool(block.found[Goal.ACCEPTED_MISTAKE].known.all()):
            return True
    return False


def _stumble(binary: SelectiveClassifier, x: Tensor, eps: float, norm: str, seed: int) -> bool:
    """Whether one of a few random points is an accepted mistake."""
    many = x.expand(_TRIES, *x.shape[1:])
    key = noise.keys(seed, 2, torch.arange(_TRIES, device=x.device))
    offset = threat(norm).random_offset(many, eps, key)
    return bool((binary.judge(threat(norm).project(x + offset, many, eps)).labels == 1).any())
