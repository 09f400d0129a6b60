"""Draw README's picture: what our attacks found and what is proven, with a band between them.

`python examples/readme_figure.py` attacks and certifies the bundled verified model and writes
`docs/img/band.svg`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import torch

from cpr_wrap import load, load_data, robustness_curve

FIGURE = Path(__file__).parent.parent / "docs" / "img" / "band.svg"
COLOUR = "#1b6ca8"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=100, help="test images")
    parser.add_argument("--eps", type=float, default=0.3)
    parser.add_argument("--budget", default="quick", help="how hard to attack")
    parser.add_argument("--out", type=Path, default=FIGURE)
    options = parser.parse_args()

    model = load("bundled:mnist-compact-ibp")  # rule: verified, radius 0.17
    data = load_data("mnist", "robust", num=options.num)
    curve = robustness_curve(
        model, data.images, data.labels, options.eps, budget=options.budget, certify=True
    )
    assert curve.certificate is not None
    alphas = torch.linspace(0, 1, 401, dtype=torch.float64)
    found, proven = curve.accuracy_at(alphas), curve.certificate.accuracy_at(alphas)

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "cpr-wrap"  # the same run draws the same file
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    axes.plot(alphas, found, color=COLOUR, label="not broken by our attacks")
    axes.plot(alphas, proven, color=COLOUR, linestyle="--", label="proven")
    axes.fill_between(alphas, proven, found, color=COLOUR, alpha=0.15, linewidth=0)
    axes.set(
        xlabel="alpha: rejecting an input within alpha · eps of a clean image is an error",
        ylabel="robustness with rejection",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"Verified consistency, MNIST, Linf eps {options.eps:g}, {options.num} images",
    )
    axes.legend(loc="lower left")
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
