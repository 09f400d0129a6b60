"""How good the evaluation engine is, in five figures, on the bundled model.

Run `python -m examples.benchmark.engine` on an idle machine: a few minutes on two cores. Figures
are ratios of things measured in the same run, or counts. `--paper` adds a comparison that takes
long, and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from cpr_wrap import load, load_data
from cpr_wrap.data import ImageData
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.evaluation.benchmark import measure
from cpr_wrap.meter import Passes
from cpr_wrap.selective import SelectiveClassifier
from examples.benchmark.compare import Comparison, compare_naive, compare_paper, measure_growth
from examples.benchmark.naive import NaiveLoop
from examples.benchmark.published import published_passes

ADDRESS, EPS = "bundled:mnist-compact-at", 0.3
RULE = {"rule": "cpr", "radius": 0.1, "steps": 20, "step_size": 0.01}
PARTS = ("engine", "growth", "naive")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure, what it is meant to be, and what exactly was measured."""

    name: str
    value: float
    target: str
    met: bool
    measured: str


def engine(model: SelectiveClassifier, data: ImageData, batch_size: int) -> Iterator[Figure]:
    found = measure(model, data, EPS, budget="standard", batch_size=batch_size)
    yield Figure(
        name="1 engine efficiency: bare time of all passes / wall time",
        value=found.efficiency,
        target="at least 0.85",
        met=found.efficiency >= 0.85,
        measured=f"{found.cpu_efficiency:.3f} in processor time; standard, {found.images} images, "
        f"wall {found.seconds:.1f} s, processor {found.cpu_seconds:.1f} s; bare forward "
        f"{1e6 * found.forward:.0f} us, input gradient {1e6 * found.backward:.0f} us per image, "
        "timed before and after",
    )
    published = sum(published_passes(model.rule.steps).values(), Passes())
    quick = robustness_curve(
        model, data.images, data.labels, EPS, budget="quick", batch_size=batch_size
    )
    for budget, passes, most in (
        ("quick", quick.passes_per_image, 1_000),
        ("standard", found.passes_per_image, 10_000),
    ):
        yield Figure(
            name=f"2 passes per image, {budget}",
            value=passes,
            target=f"at most {most:,}",
            met=passes <= most,
            measured=f"{found.images} images; the published protocol's formula gives "
            f"{published.forwards:,} forwards + {published.backwards:,} backwards, "
            f"{published.total / passes:,.0f} times as many",
        )
    yield Figure(
        name="3 one prediction / m (forward + input gradient) + forward",
        value=found.prediction_ratio,
        target="at most 1.10",
        met=found.prediction_ratio <= 1.10,
        measured=f"{found.cpu_prediction_ratio:.3f} in processor time; m = {model.rule.steps}, "
        f"{1e3 * found.prediction:.2f} ms per image",
    )


def growth(model: SelectiveClassifier, data: ImageData, batch_size: int) -> Iterator[Figure]:
    found = measure_growth(model, data, EPS, batch_size=batch_size)
    yield Figure(
        name=f"4 passes for {found.times} times the images / {found.times} times the passes",
        value=found.passes,
        target="within 10 % of 1",
        met=abs(found.passes - 1) <= 0.1,
        measured=f"{found.cpu:.3f} for processor time; quick, {found.once.images} and "
        f"{found.often.images} images, {found.once.passes:,} and {found.often.passes:,} passes",
    )
    sizes = ", ".join(
        f"{name} {getattr(found.once, name) / 2**20:.1f} and "
        f"{getattr(found.often, name) / 2**20:.1f} MB"
        for name in ("peak", "before", "inputs", "results", "working")
    )
    yield Figure(
        name=f"4 working memory at the peak, {found.times} times the images / once",
        value=found.memory,
        target="at most 1.10",
        met=found.memory <= 1.1,
        measured=f"resident memory of fresh processes: {sizes}",
    )


def naive(model: SelectiveClassifier, data: ImageData, loop: NaiveLoop) -> Iterator[Figure]:
    found = compare_naive(model, data, EPS, naive=loop)
    assert found.cpu_seconds is not None
    ratio = found.seconds[1] / found.seconds[0]
    yield Figure(
        name="5 seconds of the straightforward loop / of standard",
        value=ratio,
        target="at least 10, and no fewer errors",
        met=ratio >= 10 and found.no_fewer,
        measured=f"{found.cpu_seconds[1] / found.cpu_seconds[0]:.1f} in processor time; "
        f"{found.seconds[1]:.1f} s and {found.seconds[0]:.1f} s, {found.images} images, ten "
        f"alphas, every target; the loop: {loop.steps} steps, 1 + {loop.random_starts} "
        f"starts, one step size, {_errors(found)}",
    )


def paper(model: SelectiveClassifier, data: ImageData, store: Path) -> Iterator[Figure]:
    found = compare_paper(model, data, EPS, store=store, batch_size=128, block_size=4)
    differences = [a - b for a, b in zip(found.ours, found.theirs, strict=True)]
    yield Figure(
        name="2 errors that standard finds more than the paper's protocol, least over alphas",
        value=min(*differences, found.outer[0] - found.outer[1]),
        target="at least 0",
        met=found.no_fewer,
        measured=f"{found.images} images; the protocol: 20 steps, 1 + 1 starts, three step "
        f"sizes; {_errors(found)}",
    )


def _errors(found: Comparison) -> str:
    return (
        f"errors at {', '.join(f'{alpha:g}' for alpha in found.alphas)}: standard {found.ours}, "
        f"it {found.theirs}; outer alone {found.outer[0]} and {found.outer[1]}; passes per image "
        f"{found.passes_per_image[0]:,.0f} and {found.passes_per_image[1]:,.0f}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="any of " + ",".join(PARTS))
    parser.add_argument("--num", type=int, default=100, help="images of engine and growth")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, help="of torch; by default as torch chooses")
    parser.add_argument("--naive-num", type=int, default=4, help="images of the naive part")
    parser.add_argument("--naive-iterations", type=int, default=20)
    parser.add_argument("--naive-starts", type=int, default=1, help="random starts beside zero")
    parser.add_argument("--paper", action="store_true", help="also compare with the protocol")
    parser.add_argument("--paper-num", type=int, default=20, help="images of that comparison")
    parser.add_argument("--store", type=Path, default=Path("runs/benchmark-store"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    unknown = set(filter(None, chosen.parts.split(","))) - set(PARTS)
    if unknown:
        parser.error(f"--parts: expected some of {', '.join(PARTS)}, got {', '.join(unknown)}")
    return chosen


def figures(chosen: argparse.Namespace) -> Iterator[Figure]:
    model = load(ADDRESS, **RULE)
    parts = chosen.parts.split(",")
    data = load_data("mnist", "robust", num=chosen.num)
    if "engine" in parts:
        yield from engine(model, data, chosen.batch_size)
    if "growth" in parts:
        yield from growth(model, data, chosen.batch_size)
    if "naive" in parts:
        loop = NaiveLoop(steps=chosen.naive_iterations, random_starts=chosen.naive_starts)
        yield from naive(model, load_data("mnist", "robust", num=chosen.naive_num), loop)
    if chosen.paper:
        yield from paper(model, load_data("mnist", "robust", num=chosen.paper_num), chosen.store)


def main() -> None:
    chosen = arguments()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    setting = {
        "model": ADDRESS,
        **RULE,
        "eps": EPS,
        "batch_size": chosen.batch_size,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "torch": torch.__version__,
    }
    if not chosen.json:
        print(", ".join(f"{name} {value}" for name, value in setting.items()))
        if setting["load_before"] > 0.5:
            print("The machine was busy before this began; trust processor times, not the clock.")
    found = []
    for figure in figures(chosen):
        found.append(asdict(figure))
        if not chosen.json:
            verdict = "met" if figure.met else "MISSED"
            print(f"\n{figure.name}\n  {figure.value:,.3g}, {figure.target}: {verdict}")
            print(f"  {figure.measured}", flush=True)
    if chosen.json:
        print(json.dumps({"setting": setting, "figures": found}, indent=2))


if __name__ == "__main__":
    main()
