"""Certified and attacked robustness of several rules: a table, and a figure of the band.

`python examples/certificates/compare.py --num 100` evaluates each row that has no result yet in
`examples/results/certificates`, then writes `table.md` there and `docs/img/band.svg`. `--draw` only
writes table and figure from the results there are. It needs all of MNIST's test images: set
CPR_WRAP_DATA. The images begin at number 1000, the others were looked at while rules were made.
"""

from __future__ import annotations

import argparse
import time
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
    certify,
    load,
    load_data,
    load_result,
    robustness_curve,
    save_result,
)
from cpr_wrap.metrics import About

HERE = Path(__file__).parent
DATA = HERE.parent / "results" / "certificates"
FIGURE = HERE.parent.parent / "docs" / "img" / "band.svg"
FIRST = 1000
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


def folder_of(row: Row, eps: float, budget: str) -> Path:
    """Where the result of a row is."""
    return DATA / f"{row.name.replace(', ', '-').replace(' ', '-')}-eps{eps:g}-{budget}"


def evaluate(row: Row, eps: float, num: int, budget: str) -> None:
    """Prove and attack, and write the result without its points, which are large."""
    folder = folder_of(row, eps, budget)
    if (folder / "result.json").exists():
        return
    data = load_data("mnist", "test", start=FIRST, num=num)
    model, images = row.build(), (data.images, data.labels, eps)
    curve = robustness_curve(model, *images, budget=budget, indices=data.indices, progress=True)
    # CROWN takes long, and `crown` shows how little it reaches at such eps: only one rule asks it.
    proven = certify(
        model, *images, crown=model.rule.name == "verified", indices=data.indices, progress=True
    )
    about = About(name=f"{row.name}, eps {eps:g}", model=row.model, dataset="mnist", part="test")
    save_result(replace(curve, about=about, points=None, certificate=proven), folder)


def crown(num: int) -> str:
    """What CROWN adds to interval bounds on both networks, as lines of text."""
    file = DATA / "crown.md"
    if file.exists() or not num:
        return file.read_text() if file.exists() else ""
    data = load_data("mnist", "test", start=FIRST, num=num)
    lines = []
    for name in ("ibp", "at"):
        model = load(f"bundled:mnist-compact-{name}").with_rule(AcceptAll())
        known = certify(model, data.images, data.labels, BUDGETS[0], crown=False)
        started = time.process_time()
        found = certify(model, data.images, data.labels, BUDGETS[0])
        seconds = (time.process_time() - started) / num
        middle = [float(certificate.radius.median()) for certificate in (known, found)]
        most = [float(certificate.radius.max()) for certificate in (known, found)]
        lines.append(
            f"- `{name}`: median radius {middle[0]:.3f} by interval bounds, {middle[1]:.3f} with "
            f"CROWN; largest {most[0]:.3f} and {most[1]:.3f}; CROWN took "
            f"{seconds:.2f} processor seconds per image."
        )
    head = f"Radii of the bare networks on {num} images from number {FIRST} on, eps {BUDGETS[0]:g}:"
    file.write_text("\n".join([head, "", *lines]) + "\n")
    return file.read_text()


def stated(num: int) -> str:
    """What interval bounds prove of the bundled rule on many images, as a table."""
    file = DATA / "stated.md"
    if file.exists() or not num:
        return file.read_text() if file.exists() else ""
    model, data = load(ROWS[0].model), load_data("mnist", "test", start=FIRST, num=num)
    answers = [model(part) for part in data.images.split(500)]
    right = torch.cat([answer.predicted for answer in answers]) == data.labels
    accepted = torch.cat([answer.accepted for answer in answers])
    rejected = float((right & ~accepted).sum() / right.sum())
    lines = [
        f"`{ROWS[0].model}` with its rule, {model.rule.describe()}, on {len(right)} images from "
        f"number {FIRST} on: the bare network is right on {float(right.double().mean()):.1%} of "
        f"clean images, and {rejected:.1%} of its right answers are rejected. Certified:",
        "",
        "| eps | " + " | ".join(f"alpha {alpha:g}" for alpha in ALPHAS) + " | ramp:2 loss |",
        "|" + "---|" * (len(ALPHAS) + 2),
    ]
    for eps in BUDGETS:
        proven = certify(model, data.images, data.labels, eps, crown=False, progress=True)
        cells = [f"{proven.accuracy_at(alpha):.1%}" for alpha in ALPHAS]
        loss = f"at most {proven.total_robust_loss('ramp:2'):.3f}"
        lines.append("| " + " | ".join([f"{eps:g}", *cells, loss]) + " |")
    file.write_text("\n".join(lines) + "\n")
    return file.read_text()


def results() -> list[tuple[Row, float, RobustnessCurve]]:
    """All results there are."""
    found = [
        (row, eps, folder_of(row, eps, budget))
        for eps in BUDGETS
        for row in ROWS
        for budget in ("quick", "standard")
    ]
    return [(r, e, load_result(path)) for r, e, path in found if (path / "result.json").exists()]


def table(found: list[tuple[Row, float, RobustnessCurve]]) -> str:
    """The table in Markdown: certified … attacked robustness, and the same for the loss."""
    heads = ["eps", "network, rule", "attacks", "images", "clean right", "right answers rejected"]
    heads += ["passes"]
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
    assert curve.settings is not None
    cells = [f"{eps:g}", row.name, curve.settings.budget, str(len(records)), f"{clean:.1%}"]
    cells += [f"{float(rejected.sum()) / int(right.sum()):.1%}"]
    cells += [str(rule.forwards + rule.backwards)]
    cells += [f"{proven.accuracy_at(a):.1%} … {curve.accuracy_at(a):.1%}" for a in ALPHAS]
    losses = proven.total_robust_loss("ramp:2"), curve.total_robust_loss("ramp:2")
    return [*cells, f"{losses[0]:.3f} … {losses[1]:.3f}"]


def draw(found: list[tuple[Row, float, RobustnessCurve]], name: str) -> None:
    """Draw the bands of a row, one panel for each eps."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cpr-wrap"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.4), sharey=True, layout="constrained")
    alphas = torch.linspace(0, 1, 401, dtype=torch.float64)
    for axes, eps in zip(panels, BUDGETS, strict=True):
        chosen = [c for row, e, c in found if row.name == name and e == eps]
        most = max(chosen, key=lambda curve: len(curve.records))
        proven = most.certificate
        assert proven is not None
        low, high = proven.accuracy_at(alphas), most.accuracy_at(alphas)
        axes.fill_between(
            alphas, low, high, color="#1b6ca8", alpha=0.25, linewidth=0, label="unknown"
        )
        axes.plot(alphas, high, color="#1b6ca8", label="not broken by our attacks")
        axes.plot(alphas, low, color="#1b6ca8", linestyle="--", label="proven")
        axes.set(xlabel="alpha", ylim=(0, 1), xlim=(0, 1))
        axes.set_title(f"Linf eps {eps:g}, {len(most.records)} MNIST images", fontsize=10)
    panels[0].set_ylabel("robustness with rejection")
    panels[0].legend(fontsize=8, loc="upper right")  # a narrow screen shows the first panel
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Certified and attacked robustness of rules.")
    parser.add_argument("--num", type=int, default=100, help="how many test images")
    parser.add_argument("--budget", default="quick", help="plan of attacks")
    parser.add_argument("--eps", type=float, nargs="*", default=BUDGETS)
    parser.add_argument("--rows", nargs="*", help="names of rows; all if left out")
    parser.add_argument("--crown", type=int, default=32, help="images CROWN is tried on; 0: none")
    parser.add_argument(
        "--stated", type=int, default=2000, help="images of the second table; 0: none"
    )
    parser.add_argument("--draw", action="store_true", help="only write table and figure")
    chosen: Any = parser.parse_args()
    for row in ROWS if not chosen.draw else ():
        for eps in chosen.eps:
            if not chosen.rows or row.name in chosen.rows:
                evaluate(row, eps, chosen.num, chosen.budget)
    found = results()
    parts = [table(found), stated(chosen.stated), crown(chosen.crown)]
    (DATA / "table.md").write_text("\n".join(part for part in parts if part))
    draw(found, ROWS[0].name)
    print((DATA / "table.md").read_text())


if __name__ == "__main__":
    main()
