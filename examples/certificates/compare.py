"""Certified and attacked robustness of several rules: a table, and a figure of the band.

`python examples/certificates/compare.py --num 100` evaluates each row that has no result yet
in `examples/certificates/data`, then writes `table.md` there and `docs/img/band.svg`. Stopped,
it resumes. `--draw` only writes table and figure from the results there are.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cpr_wrap import (
    AcceptAll,
    Confidence,
    Consistency,
    RejectionRule,
    RobustnessCurve,
    SelectiveClassifier,
    calibrate,
    load,
    load_data,
    load_result,
    robustness_curve,
    save_result,
)
from cpr_wrap.metrics import About

HERE = Path(__file__).parent
DATA, FIGURE = HERE / "data", HERE.parent.parent / "docs" / "img" / "band.svg"
BUDGETS = (0.3, 0.4)
ALPHAS = (0.0, 0.25, 0.5, 1.0)
CPR = Consistency(radius=0.1, steps=20, step_size=0.01)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A network under a rule; the rule's `rate` of clean rejections is set on validation images."""

    name: str
    model: str
    rule: RejectionRule | None = None
    rate: float | None = None

    def build(self) -> SelectiveClassifier:
        """The model, its rule set."""
        model = load(self.model)
        if self.rule is not None:
            model = model.with_rule(self.rule)
        if self.rate is None:
            return model
        held_out = load_data("mnist", "validation")
        return calibrate(model, held_out.images, held_out.labels, self.rate).model


ROWS = [
    Row(name="ibp, verified consistency", model="bundled:mnist-compact-ibp"),
    Row(name="ibp, no rejection", model="bundled:mnist-compact-ibp", rule=AcceptAll()),
    Row(name="ibp, gradient CPR", model="bundled:mnist-compact-ibp", rule=CPR),
    Row(name="ibp, confidence", model="bundled:mnist-compact-ibp", rule=Confidence(), rate=0.03),
    Row(name="at, gradient CPR", model="bundled:mnist-compact-at", rule=CPR),
    Row(name="at, confidence", model="bundled:mnist-compact-at", rule=Confidence(), rate=0.01),
    Row(name="at, no rejection", model="bundled:mnist-compact-at", rule=AcceptAll()),
]


def folder_of(row: Row, eps: float) -> Path:
    """Where the result of a row is."""
    return DATA / f"{row.name.replace(', ', '-').replace(' ', '-')}-eps{eps:g}"


def evaluate(row: Row, eps: float, num: int, budget: str) -> None:
    """Prove and attack, and write the result without its points, which are large."""
    folder = folder_of(row, eps)
    if (folder / "result.json").exists():
        return
    data = load_data("mnist", "robust", num=num)
    curve = robustness_curve(
        row.build(),
        data.images,
        data.labels,
        eps,
        budget=budget,
        certify=True,
        store=HERE / "store",
        indices=data.indices,
        progress=True,
    )
    about = About(name=f"{row.name}, eps {eps:g}", model=row.model, dataset="mnist", part="robust")
    save_result(replace(curve, about=about, points=None), folder)


def results() -> list[tuple[Row, float, RobustnessCurve]]:
    """All results there are."""
    found = [(row, eps, folder_of(row, eps)) for eps in BUDGETS for row in ROWS]
    return [(r, e, load_result(path)) for r, e, path in found if (path / "result.json").exists()]


def table(found: list[tuple[Row, float, RobustnessCurve]]) -> str:
    """The table in Markdown: certified … attacked."""
    heads = ["eps", "network, rule", "images", "clean right", "right answers rejected", "passes"]
    heads += [f"alpha {alpha:g}" for alpha in ALPHAS] + ["ramp:2 loss"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row, eps, curve in found:
        lines.append("| " + " | ".join(_cells(row, eps, curve)) + " |")
    return "\n".join(lines) + "\n"


def _cells(row: Row, eps: float, curve: RobustnessCurve) -> list[str]:
    proven, records, rule = curve.certificate, curve.records, curve.settings and curve.settings.rule
    assert proven is not None
    assert rule
    assert records.base_label is not None
    right = records.base_label == records.label
    rejected = (records.clean_label == -1) & right
    clean = float(right.double().mean())
    cells = [f"{eps:g}", row.name, str(len(records)), f"{clean:.1%}"]
    cells += [f"{float(rejected.sum()) / int(right.sum()):.1%}"]
    cells += [str(rule.forwards + rule.backwards)]
    cells += [f"{proven.accuracy_at(a):.1%} … {curve.accuracy_at(a):.1%}" for a in ALPHAS]
    losses = proven.total_robust_loss("ramp:2"), curve.total_robust_loss("ramp:2")
    return [*cells, f"{losses[0]:.3f} … {losses[1]:.3f}"]


def draw(found: list[tuple[Row, float, RobustnessCurve]], names: list[str], eps: float) -> None:
    """Draw the bands of some rows at one eps."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cpr-wrap"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    alphas = torch.linspace(0, 1, 401, dtype=torch.float64)
    colours = ["#1b6ca8", "#d1495b", "#66a182"]
    for row, budget, curve in found:
        if budget != eps or row.name not in names or curve.certificate is None:
            continue
        colour = colours[names.index(row.name)]
        low, high = curve.certificate.accuracy_at(alphas), curve.accuracy_at(alphas)
        axes.fill_between(alphas, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(alphas, high, color=colour, label=f"{row.name}: not broken by our attacks")
        axes.plot(alphas, low, color=colour, linestyle="--", label=f"{row.name}: proven")
    axes.set(xlabel="alpha", ylabel="robustness with rejection", ylim=(0, 1), xlim=(0, 1))
    axes.set_title(f"MNIST, Linf eps {eps:g}: the truth lies in the shaded band", fontsize=10)
    axes.legend(fontsize=7, loc="lower left")
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Certified and attacked robustness of rules.")
    parser.add_argument("--num", type=int, default=100, help="how many test images")
    parser.add_argument("--budget", default="standard", help="plan of attacks")
    parser.add_argument("--eps", type=float, nargs="*", default=BUDGETS)
    parser.add_argument("--rows", nargs="*", help="names of rows; all if left out")
    parser.add_argument("--draw", action="store_true", help="only write table and figure")
    chosen: Any = parser.parse_args()
    for row in ROWS if not chosen.draw else ():
        for eps in chosen.eps:
            if not chosen.rows or row.name in chosen.rows:
                evaluate(row, eps, chosen.num, chosen.budget)
    found = results()
    (DATA / "table.md").write_text(table(found))
    draw(found, ["ibp, verified consistency", "at, gradient CPR"], 0.4)
    print(table(found))


if __name__ == "__main__":
    main()
