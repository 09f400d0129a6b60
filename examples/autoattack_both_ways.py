"""AutoAttack on a selective classifier: on the bare network, and after what really counts.

AutoAttack stops at the first mistake of the network, and most of those are rejected. Adapted to the
goal "accepted and wrong", the same attacks go on until a mistake gets through.

Run it with `python examples/autoattack_both_ways.py`.
"""

from __future__ import annotations

import argparse

from torch import Tensor

from cpr_wrap import REJECT, CPRWrapper, SelectiveClassifier, load_data, load_network
from cpr_wrap.attacks.autoattack import AdaptiveAutoAttack, AutoAttackOnBase
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.geometry import threat
from cpr_wrap.meter import count_passes


def judge(model: SelectiveClassifier, points: Tensor, x: Tensor, y: Tensor, eps: float) -> str:
    # An attack only proposes: its points are put back into the ball, and the model is asked.
    points = threat("Linf").project(points, x, eps)
    selection = model(points)
    wrong = selection.predicted != y
    through = (selection.labels != REJECT) & wrong
    return f"{int(wrong.sum())} of {len(y)} mistakes of the network, {int(through.sum())} accepted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=8, help="images to attack")
    parser.add_argument("--eps", type=float, default=0.45, help="budget; it was trained for 0.3")
    parser.add_argument("--version", default="small", help="small, standard or plus")
    options = parser.parse_args()

    network = load_network("bundled:mnist-compact-at").network
    model = CPRWrapper(network, radius=0.05, steps=5, step_size=0.0125)
    test = load_data("mnist", "robust", num=options.num)
    x, y = test.images, test.labels

    for attack in (
        AutoAttackOnBase(version=options.version),
        AdaptiveAutoAttack(version=options.version),
    ):
        with count_passes() as passes:
            points = attack.perturb(
                model, x, y, options.eps, norm="Linf", seed=0, index=test.indices
            )
        found = judge(model, points, x, y, options.eps)
        print(f"{attack.name}: {found}, {passes.total // len(x)} passes an image")

    # The evaluation does the same by itself, with AutoAttack as an extra after its own attacks.
    extra = AdaptiveAutoAttack(version=options.version)
    curve = robustness_curve(model, x, y, options.eps, budget="quick", extras=[extra])
    print(curve)
    print("first broken by:", curve.records.first_broken_by())


if __name__ == "__main__":
    main()
