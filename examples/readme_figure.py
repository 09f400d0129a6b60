"""Draws README's curves: one network under three rules, from the published results of the study.

Run it with `python examples/readme_figure.py`. It writes docs/img/curve-*.svg and the caption.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from _paste import ROOT, paste

from cpr_wrap.evaluation import load_result
from cpr_wrap.metrics import RobustnessCurve
from cpr_wrap.report import curve_figure, write_figure

RESULTS = "docs/study/main"
METHODS = {"CPR": "at+cpr", "confidence": "at+cr", "no rejection": "at"}
BUDGETS = {0.3: "the training's", 0.4: "larger than the training's"}

Curves = Mapping[str, RobustnessCurve]


def read(eps: float, root: Path = ROOT) -> Curves:
    """The published curves of the three rules for one eps, by the rule's name."""
    return {
        name: load_result(root / RESULTS / f"{method}-eps{eps:g}")
        for name, method in METHODS.items()
    }


def image(eps: float) -> str:
    """Where the picture for an eps goes, from the root of the repository."""
    return f"docs/img/curve-eps{eps:g}.svg"


def _rejected(curve: RobustnessCurve) -> str:
    seen = curve.details["calibration"]["validation"]
    return f"{seen['rejected_correct'] / seen['correct']:.1%}"


def caption(found: Mapping[float, Curves]) -> str:
    """The pictures, and below them what they show."""
    pictures = " ".join(f"![Robustness over alpha, eps {eps:g}]({image(eps)})" for eps in found)
    sentences = "; ".join(
        f"eps {eps:g}, {BUDGETS[eps]}: "
        + ", ".join(
            f"{name} {curve.accuracy_at(0.0):.1%} at alpha 0 and {curve.accuracy_at(1.0):.1%} at 1"
            for name, curve in curves.items()
        )
        for eps, curves in found.items()
    )
    first = next(iter(found.values()))
    curve = first["CPR"]
    rejected = ", ".join(f"{name} {_rejected(first[name])}" for name in ("CPR", "confidence"))
    return (
        f"{pictures}\n\n"
        f"*`{curve.details['model']}` under three rules: the first {len(curve.records)} test "
        "images of MNIST, Linf. Both rejecting rules under budget `standard`, the bare network "
        "under AutoAttack. CPR has the paper's radius, confidence is calibrated to 1 %; of the "
        f"right answers on validation images they reject: {rejected}. Robustness found: "
        f"{sentences}. Shaded: 95 % bootstrap intervals over images. From the results of the "
        "[study](docs/study.md), drawn by [examples/readme_figure.py](examples/readme_figure.py).*"
    )


def main() -> None:
    found = {eps: read(eps) for eps in BUDGETS}
    for eps, curves in found.items():
        figure = curve_figure(list(curves.values()), list(curves), size=(4.4, 3.4))
        figure.axes[0].set_ylim(-0.02, 1.02)
        figure.axes[0].set_title(f"eps {eps:g}", fontsize="medium")
        write_figure(figure, ROOT / image(eps))
    text = caption(found)
    paste("figure", text)
    print(text)


if __name__ == "__main__":
    main()
