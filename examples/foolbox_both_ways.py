"""Foolbox and a selective classifier: its attacks in our evaluation, our model in its attacks.

Run it with `python examples/foolbox_both_ways.py`.
"""

from __future__ import annotations

import argparse

import foolbox
import torch

from cpr_wrap import CPRWrapper, load_data, load_network
from cpr_wrap.attacks.foolbox import FoolboxAttack, to_foolbox
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.objective import Goal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=4, help="images to attack")
    parser.add_argument("--eps", type=float, default=0.45, help="budget; it was trained for 0.3")
    parser.add_argument("--steps", type=int, default=20, help="steps of each attack")
    options = parser.parse_args()

    network = load_network("bundled:mnist-compact-at").network
    model = CPRWrapper(network, radius=0.05, steps=5, step_size=0.0125)
    test = load_data("mnist", "robust", num=options.num)
    x, y, eps = test.images, test.labels, options.eps

    # Our model in Foolbox: k + 1 columns, and a criterion that knows what a rejection is.
    torch.manual_seed(0)  # Foolbox draws from the global generator
    pgd = foolbox.attacks.LinfPGD(steps=options.steps, rel_stepsize=0.2)
    for goal in (Goal.ACCEPTED_MISTAKE, Goal.REJECTED):
        target = to_foolbox(model, goal=goal)
        _, points, success = pgd(target, x, target.criterion(x, y), epsilons=eps)
        selection = model(points)
        confirmed = goal.reached(selection.predicted, selection.accepted, y)
        print(
            f"LinfPGD, goal {goal.value}: {int(success.sum())} of {len(y)} by Foolbox's count, "
            f"{int(confirmed.sum())} by the model's own"
        )

    # Foolbox's attacks in our evaluation: they propose, it projects, judges and counts.
    fmn = foolbox.attacks.LInfFMNAttack(steps=options.steps, max_stepsize=10.0)
    guests = [FoolboxAttack(pgd), FoolboxAttack(fmn)]
    curve = robustness_curve(model, x, y, eps, budget="quick", extras=guests)
    print(curve)
    print("first broken by:", curve.records.first_broken_by())


if __name__ == "__main__":
    main()
