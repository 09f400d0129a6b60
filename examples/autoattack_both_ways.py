"""AutoAttack on a selective classifier, both ways: on its network, and after our goal.

Given logits with a reject column, AutoAttack would count every rejection as a break. Here it sees
views of the model in which that cannot happen, and what it proposes is judged by the model itself.
"""

from __future__ import annotations

import argparse

import torch

from cpr_wrap import Consistency, load, load_data
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.evaluation import robustness_curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=4, help="images to attack")
    parser.add_argument("--eps", type=float, default=0.25)
    options = parser.parse_args()

    rule = Consistency(radius=0.05, steps=5, step_size=0.01)
    model = load("bundled:mnist-compact-standard", rule=rule)
    data = load_data("mnist", "robust", num=options.num)
    x, y = data.images, data.labels

    for attack in (
        AutoAttackOnBase(version="small"),  # as the paper does: on the bare network
        AdaptiveAutoAttack(components=("apgd-ce",), n_iter=10),  # its parts with T in their logits
    ):
        # An attack only proposes. Here we judge by hand what it proposes ...
        points = attack.perturb(
            model, x, y, options.eps, norm="Linf", seed=0, index=torch.arange(len(x))
        )
        answer = model(points.clamp(0, 1))
        held = answer.accepted & (answer.predicted != y)
        print(f"{attack.name}: {int(held.sum())} of {len(x)} proposals are accepted and wrong")

    # ... and here the evaluation does, with the adaptive one as an extra after its own attacks.
    extra = AdaptiveAutoAttack(components=("apgd-ce",), n_iter=10)
    curve = robustness_curve(model, x, y, options.eps, budget="quick", extras=[extra])
    print(curve)
    print("first broken by:", curve.records.first_broken_by())


if __name__ == "__main__":
    main()
