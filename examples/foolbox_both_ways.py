"""Foolbox on a selective classifier, both ways: its attacks as ours, our model as its own."""

from __future__ import annotations

import argparse

import foolbox

from cpr_wrap import REJECT, Consistency, load, load_data
from cpr_wrap.attacks.foolbox import FoolboxAttack, to_foolbox
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.objective import Goal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=4, help="images to attack")
    parser.add_argument("--eps", type=float, default=0.25)
    options = parser.parse_args()

    rule = Consistency(radius=0.05, steps=5, step_size=0.01)
    model = load("bundled:mnist-compact-standard", rule=rule)
    data = load_data("mnist", "robust", num=options.num)
    x, y = data.images, data.labels

    # Our model as Foolbox's: k + 1 columns, and criteria that know what a rejection is.
    for goal in (Goal.ACCEPTED_MISTAKE, Goal.REJECTED):
        fmodel = to_foolbox(model, goal=goal)
        attack = foolbox.attacks.LinfPGD(steps=10)
        _, points, success = attack(fmodel, x, fmodel.criterion(x, y), epsilons=options.eps)
        labels = model.predict(points)
        reached = labels == REJECT if goal is Goal.REJECTED else (labels != REJECT) & (labels != y)
        print(f"Foolbox PGD, {goal.value}: {int(success.sum())} claimed, {int(reached.sum())} hold")

    # Its attacks as ours: they propose, the evaluation judges.
    extra = FoolboxAttack(foolbox.attacks.LInfFMNAttack(steps=10))
    curve = robustness_curve(model, x, y, options.eps, budget="quick", extras=[extra])
    print(curve)
    print("first broken by:", curve.records.first_broken_by())


if __name__ == "__main__":
    main()
