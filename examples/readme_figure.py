"""Draws README's curve: one network under three rules, and says below it what was run.

Run it with `python examples/readme_figure.py`. It writes docs/img/curve.svg and the caption.
"""

from __future__ import annotations

import argparse

from _paste import ROOT, paste

from cpr_wrap import SelectiveClassifier, calibrate, load, load_data
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report import curve_figure, write_figure

ADDRESS, EPS, RATE = "bundled:mnist-compact-at", 0.3, 0.01
IMAGE = "docs/img/curve.svg"


def contenders() -> dict[str, SelectiveClassifier]:
    """The same network with CPR and with confidence rejection, calibrated alike, and bare."""
    validation = load_data("mnist", "validation")
    x, y = validation.images, validation.labels
    cpr = load(ADDRESS, rule="cpr", radius=0.1, steps=20, step_size=0.01)
    return {
        "CPR": calibrate(cpr, x, y, RATE).model,
        "confidence": calibrate(load(ADDRESS, rule="confidence"), x, y, RATE).model,
        "no rejection": load(ADDRESS, rule="none"),
    }


def caption(curves: dict[str, RobustnessCurve], budget: str) -> str:
    """What the picture shows, with the numbers of this very run."""
    count = len(next(iter(curves.values())).records)
    passes = ", ".join(
        f"{curve.details['passes_total']['per_image']:,.0f} ({name})"
        for name, curve in curves.items()
    )
    ends = ", ".join(
        f"{name} {curve.accuracy_at(0.0):.1%} at alpha 0 and {curve.accuracy_at(1.0):.1%} at 1"
        for name, curve in curves.items()
    )
    return (
        f"![Robustness with rejection over alpha]({IMAGE})\n\n"
        f"*`{ADDRESS}` under three rules: the first {count} test images of MNIST, Linf eps "
        f"{EPS:g}, budget `{budget}`, seed 0. Both rejecting rules are calibrated to reject "
        f"{RATE:.0%} of the right answers on 1,000 validation images. Shaded: 95 % bootstrap "
        "intervals over images. "
        f"Robustness found: {ends}. Passes an image: {passes}. "
        "Made by [examples/readme_figure.py](examples/readme_figure.py).*"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=60, help="images to attack")
    parser.add_argument("--budget", default="quick", help="quick, standard, paper or published")
    parser.add_argument("--store", help="folder for finished work, to go on from")
    options = parser.parse_args()
    test = load_data("mnist", "robust", num=options.num)
    curves = {
        name: robustness_curve(
            model, test.images, test.labels, EPS, budget=options.budget, store=options.store
        )
        for name, model in contenders().items()
    }
    figure = curve_figure(list(curves.values()), list(curves), size=(6.4, 3.6))
    write_figure(figure, ROOT / IMAGE)
    text = caption(curves, options.budget)
    paste("figure", text)
    print(text)


if __name__ == "__main__":
    main()
