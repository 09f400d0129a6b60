"""Fill the tables of docs/study.md from the published results.

    python -m examples.study.page

The text of the page is written by hand. Everything between `<!-- study: NAME -->` and
`<!-- study: end -->` is replaced by the table of that name; figures are drawn again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from tabulate import tabulate

from cpr_wrap import RobustnessCurve, load_result
from cpr_wrap.evaluation.result import RESULT
from cpr_wrap.metrics import PAPER_LOSSES, clean_metrics, parse_loss
from cpr_wrap.metrics.comparison import audit_status
from cpr_wrap.report.plots import curve_figure, write_figure
from examples.study import paper
from examples.study.cells import MAIN, cells
from examples.study.claims import CLAIMS, Results, tested, verdict
from examples.study.run import PUBLISHED

ROOT = Path(__file__).parents[2]
PAGE, PICTURES = ROOT / "docs" / "study.md", ROOT / "docs" / "img"
NOT_RUN = "not run"
_GAP = ("method, eps", "images", "left by standard")
_BLOCK = re.compile(r"(<!-- study: ([a-z0-9-]+) -->\n)(.*?)(<!-- study: end -->)", re.DOTALL)


def read(folder: Path = PUBLISHED) -> Results:
    """All published results."""
    files = sorted(folder.glob(f"*/*/{RESULT}"))
    return {f"{f.parent.parent.name}/{f.parent.name}": load_result(f.parent) for f in files}


def _render(titles: list[str], rows: list[list[str]]) -> str:
    return str(tabulate(rows, headers=titles, tablefmt="pipe", disable_numparse=True))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _robustness(curve: RobustnessCurve, alpha: float) -> str:
    error = curve.error_interval(alpha)
    low, high = 100 - 100 * error.high, 100 - 100 * error.low
    return f"{_percent(curve.accuracy_at(alpha))} ({low:.0f}–{high:.0f})"


def _loss(curve: RobustnessCurve, name: str) -> str:
    found = curve.total_robust_loss_interval(parse_loss(name))
    value = curve.total_robust_loss(parse_loss(name))
    return f"{value:.3f} ({found.low:.2f}–{found.high:.2f})"


def _slug(name: str) -> str:
    return name.lower().replace("+", "-").replace(" ", "-")


def _published(method: str, when: str, loss: str) -> str:
    row = paper.LOSSES[when].get(method)
    return "–" if row is None else f"{row[loss]:.3f}"


def main_table(results: Results, when: str) -> str:
    """Every method at one budget of the adversary, beside the paper's figures."""
    titles = [
        "method",
        "α = 0",
        "paper",
        "α = 0.5",
        "α = 1",
        "step 0.05",
        "paper",
        "ramp 2",
        "paper",
    ]
    titles += ["clean rejected", "passes per image", "audit"]
    rows = []
    for method in MAIN:
        curve = results.get(f"main/{_slug(method.name)}-{paper.EPS[when]:g}")
        known = paper.TRADITIONAL.get(method.name)
        theirs = "–" if known is None else f"{known[when]:.1f} %"
        if curve is None:
            rows.append([method.name, NOT_RUN, theirs])
            continue
        rows.append(
            [
                method.name,
                _robustness(curve, 0),
                theirs,
                _percent(curve.accuracy_at(0.5)),
                _percent(curve.accuracy_at(1)),
                _loss(curve, "step:0.05"),
                _published(method.name, when, "step:0.05"),
                _loss(curve, "ramp:2"),
                _published(method.name, when, "ramp:2"),
                _percent(clean_metrics(curve.records).rejection_rate),
                f"{curve.passes_per_image:,.0f}",
                audit_status(curve),
            ]
        )
        if curve.certificate is not None:
            proven = curve.certificate
            shares = [_percent(proven.accuracy_at(alpha)) for alpha in (0.0, 0.5, 1.0)]
            losses = [
                f"{proven.total_robust_loss(parse_loss(n)):.3f}" for n in ("step:0.05", "ramp:2")
            ]
            row = [f"{method.name}, proven", shares[0], "–", *shares[1:]]
            rows.append([*row, losses[0], "–", losses[1], "–", "", "", "proof"])
    return _render(titles, rows)


def losses_table(results: Results, when: str) -> str:
    """All ten losses of every method."""
    rows = []
    for method in MAIN:
        curve = results.get(f"main/{_slug(method.name)}-{paper.EPS[when]:g}")
        if curve is not None:
            values = [f"{curve.total_robust_loss(loss):.3f}" for loss in PAPER_LOSSES]
            rows.append([method.name, *values])
    return _render(["method", *(loss.name for loss in PAPER_LOSSES)], rows)


def claims_table(results: Results) -> str:
    """What became of each claim."""
    tests = tested(results)
    return _render(
        ["", "claim", "here"],
        [[number, text, f"**{verdict(number, tests)}**"] for number, text in CLAIMS.items()],
    )


def tests_table(results: Results) -> str:
    """Every paired test of the plan."""
    rows = []
    for test in tested(results):
        each, sides = test.comparison, test.comparison.sides(results)
        if sides is None or test.found is None:
            rows.append([each.claim, each.loss, NOT_RUN])
            continue
        values = [f"{each.value(results[side]):.3f}" for side in sides]
        names = [side.partition("/")[2] for side in sides]
        said = {True: "as claimed", False: "the other way", None: "within chance"}[test.holds]
        pairs = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
        rows.append([each.claim, each.loss, *pairs, str(test.found), said])
    return _render(["claim", "loss", "first", "second", "difference", ""], rows)


def _gap(results: Results, stage: str, titles: list[str]) -> str:
    """Results of another budget beside those of `standard` on the same images."""
    rows = []
    for cell in (c for c in cells() if c.stage == stage):
        name = f"{cell.method.name}, {cell.eps:g}"
        other = results.get(f"{stage}/{cell.name}")
        main = results.get(f"main/{_slug(cell.method.name)}-{cell.eps:g}")
        if other is None or main is None:
            rows.append([name, NOT_RUN])
            continue
        shared = set(other.records.index.tolist())
        kept = [not b for i, b in _broken(main) if i in shared]
        left = [not b for _, b in _broken(other)]
        row = [name, str(len(left)), str(sum(kept)), str(sum(left))]
        notes = () if other.provenance is None else other.provenance.notes
        said = "; ".join(note.partition(": ")[2] for note in notes if note.startswith("thorough"))
        rows.append([*row, f"{other.passes_per_image:,.0f}", said][: len(titles)])
    return _render(titles, rows)


def _broken(curve: RobustnessCurve) -> list[tuple[int, bool]]:
    records = curve.records
    return list(zip(records.index.tolist(), records.outer_broken.tolist(), strict=True))


def _simple(stage: str) -> Callable[[Results], str]:
    def table(results: Results) -> str:
        rows = []
        for cell in (c for c in cells() if c.stage == stage):
            curve = results.get(f"{stage}/{cell.name}")
            where = f"{cell.eps:g}" if cell.method.dataset == "mnist" else f"{cell.eps * 255:g}/255"
            row = [cell.method.name, where, cell.budget.name]
            if curve is None:
                rows.append([*row, NOT_RUN])
                continue
            shares = [_robustness(curve, 0), _percent(curve.accuracy_at(0.5))]
            shares += [_percent(curve.accuracy_at(1)), _loss(curve, "ramp:2")]
            rows.append([*row, *shares, f"{curve.passes_per_image:,.0f}"])
        titles = ["method", "eps", "attacks", "α = 0", "α = 0.5", "α = 1", "ramp 2"]
        return _render([*titles, "passes per image"], rows)

    return table


def audits_table(results: Results) -> str:
    """The checks of the audit that failed, with what they saw."""
    rows = [
        [name.partition("/")[2], check.name, check.detail]
        for name, curve in results.items()
        for check in curve.checks or ()
        if check.passed is False
    ]
    return _render(["result", "check that failed", "what it saw"], rows)


def run_table(results: Results) -> str:
    """How much of the plan was run."""
    rows = []
    for stage in dict.fromkeys(cell.stage for cell in cells()):
        planned = [cell for cell in cells() if cell.stage == stage]
        done = [results[n] for c in planned if (n := f"{stage}/{c.name}") in results]
        minutes = sum(c.provenance.seconds for c in done if c.provenance is not None) / 60
        count = f"{len(done)} of {len(planned)}"
        rows.append([stage, count, str(planned[0].num), f"{minutes:.0f} min"])
    return _render(["stage", "results", "images each", "time on one core"], rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "run": run_table,
    "claims": claims_table,
    "tests": tests_table,
    "main-seen": lambda results: main_table(results, paper.SEEN),
    "main-unseen": lambda results: main_table(results, paper.UNSEEN),
    "losses-seen": lambda results: losses_table(results, paper.SEEN),
    "losses-unseen": lambda results: losses_table(results, paper.UNSEEN),
    "thorough": lambda results: _gap(
        results,
        "thorough",
        [
            "method, eps",
            "images",
            "left by standard",
            "left by thorough",
            "passes per image",
            "ended",
        ],
    ),
    "former": lambda results: _gap(
        results,
        "former",
        [*_GAP, "left by the former one", "passes per image"],
    ),
    "cifar10": _simple("cifar10"),
    "radius": _simple("radius"),
    "attacks": _simple("attacks"),
    "ccat": _simple("ccat"),
    "audits": audits_table,
}


def filled(text: str, results: Results) -> str:
    """The page with every table made anew."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n{TABLES[m[2]](results)}\n\n{m[4]}", text)


def draw(results: Results, folder: Path = PICTURES) -> None:
    """Curves of the main table, one figure per budget of the adversary."""
    for when, eps in paper.EPS.items():
        names = [m.name for m in MAIN if f"main/{_slug(m.name)}-{eps:g}" in results]
        curves = [results[f"main/{_slug(name)}-{eps:g}"] for name in names]
        if curves:
            figure = curve_figure(curves, names, band=False, size=(6.0, 4.0))
            write_figure(figure, folder / f"study-{when}.svg")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    results = read()
    PAGE.write_text(filled(PAGE.read_text(), results))
    draw(results)


if __name__ == "__main__":
    main()
