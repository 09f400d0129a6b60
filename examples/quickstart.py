"""Wrap, calibrate, attack, report: everything once, offline, on the bundled model.

Run it with `python examples/quickstart.py`; more images and a stronger budget make better figures.
"""

from __future__ import annotations

import argparse

from cpr_wrap import CPRWrapper, calibrate, load_data, load_network
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.metrics import RampLoss, StepLoss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=8, help="images to attack")
    parser.add_argument("--validation", type=int, default=200, help="images to calibrate on")
    parser.add_argument("--budget", default="quick", help="quick, standard, paper or published")
    options = parser.parse_args()

    # Two lines: a network on pixels in [0, 1], and a rule that may reject.
    network = load_network("bundled:mnist-compact-at").network
    model = CPRWrapper(network, radius=0.1, steps=20, step_size=0.01)

    validation = load_data("mnist", "validation", num=options.validation)
    model, record = calibrate(model, validation.images, validation.labels, reject_rate=0.01)
    print(
        f"radius {record.after.radius:.3f} rejects {record.num_rejected} of {record.num_correct} "
        f"right answers; on new images {record.interval.low:.1%} to {record.interval.high:.1%}"
    )

    test = load_data("mnist", "robust", num=options.num)
    curve = robustness_curve(model, test.images, test.labels, eps=0.3, budget=options.budget)
    print(curve)

    # A mistake costs 1. What does a rejection cost, by how far the input is from a clean one?
    for loss in (StepLoss(0.05), RampLoss(2), lambda r: 0.3 if r < 0.1 else 0.0):
        name = getattr(loss, "name", "mine")
        print(f"total robust loss, {name}: {curve.total_robust_loss(loss):.3f}")


if __name__ == "__main__":
    main()
