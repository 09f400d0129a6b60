"""How to choose CPR's radius: what each one costs, in time, in clean rejections and under attack.

Run it with `python examples/choose_radius.py --cost step:0.05`, with a cost of your own: `step:A`,
`ramp:T`, or prices as in `prices:0.05=1,0.5=0.2` (fractions of eps). With --paste it writes its two
tables into README.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from _paste import paste

from cpr_wrap import CPRWrapper, load_data, load_network
from cpr_wrap.data import ImageData
from cpr_wrap.evaluation import robustness_curve
from cpr_wrap.metrics import RobustnessCurve

ADDRESS, EPS, STEPS, STEP_SIZE = "bundled:mnist-compact-at", 0.3, 20, 0.01


def seconds(action: Callable[[torch.Tensor], object], x: torch.Tensor, repeats: int) -> float:
    """CPU time of a call, which a busy machine does not lengthen: the quickest of several."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        action(x)
        times.append(time.process_time() - started)
    return min(times)


def latency(network: torch.nn.Module, x: torch.Tensor, steps: Sequence[int], repeats: int) -> str:
    """A table of what a prediction costs, by the number of steps m."""

    def bare(images: torch.Tensor) -> None:
        with torch.no_grad():
            network(images)

    alone = seconds(bare, x, repeats)
    rows = [
        "| m | forwards + gradients | ms an image | times the bare network |",
        "|---|---|---|---|",
    ]
    rows.append(f"| no rejection | 1 + 0 | {1000 * alone / len(x):.2f} | 1 × |")
    for count in steps:
        model = CPRWrapper(network, radius=0.1, steps=count, step_size=0.1 / count)
        taken = seconds(model, x, repeats)
        cells = (f"{count + 1} + {count}", f"{1000 * taken / len(x):.2f}", f"{taken / alone:.0f} ×")
        rows.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join(rows)


def row(radius: float, rejected: float, curve: RobustnessCurve, costs: Sequence[str]) -> str:
    """One radius: clean rejections, and the total robust loss for each cost with its interval."""
    cells = [
        f"{radius:g}",
        f"{rejected:.1%}",
        f"{float(curve.records.outer_broken.double().mean()):.1%}",
    ]
    for cost in costs:
        interval = curve.total_robust_loss_interval(cost)
        value = curve.total_robust_loss(cost)
        cells.append(f"{value:.3f} ({interval.low:.3f} to {interval.high:.3f})")
    return f"| {' | '.join(cells)} |"


def measure(options: argparse.Namespace, test: ImageData, clean: ImageData) -> str:
    """The table over radii."""
    network = load_network(ADDRESS).network
    head = ["radius", "clean images rejected", "accepted mistakes found", *options.cost]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for radius in options.radius:
        model = CPRWrapper(network, radius=radius, steps=STEPS, step_size=STEP_SIZE)
        labels = torch.cat([model.predict(batch) for batch in clean.images.split(250)])
        curve = robustness_curve(
            model, test.images, test.labels, EPS, budget=options.budget, store=options.store
        )
        rows.append(row(radius, float((labels < 0).double().mean()), curve, options.cost))
        print(rows[-1], flush=True)
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost", nargs="+", default=["step:0.05", "ramp:2"])
    parser.add_argument("--radius", nargs="+", type=float, default=[0.05, 0.1, 0.15, 0.2])
    parser.add_argument("--steps", nargs="+", type=int, default=[5, 10, 20], help="for latency")
    parser.add_argument("--num", type=int, default=60, help="images to attack")
    parser.add_argument("--clean", type=int, default=1000, help="images for clean rejections")
    parser.add_argument("--budget", default="quick", help="quick, standard, paper or published")
    parser.add_argument("--repeats", type=int, default=10, help="timings, the best of which counts")
    parser.add_argument("--store", help="folder for finished work, to go on from")
    parser.add_argument("--paste", action="store_true", help="write the tables into README")
    options = parser.parse_args()

    torch.set_num_threads(1)
    test = load_data("mnist", "robust", num=options.num)
    clean = load_data("mnist", "robust", num=options.clean)
    table = measure(options, test, clean)
    times = latency(load_network(ADDRESS).network, test.images, options.steps, options.repeats)
    text = (
        f"Measured by [examples/choose_radius.py](examples/choose_radius.py) on `{ADDRESS}`, Linf "
        f"eps {EPS:g}, {STEPS} steps of {STEP_SIZE:g}; clean rejections on {len(clean):,} test "
        f"images, attacks on the first {len(test)} with budget `{options.budget}`. A mistake costs "
        f"1; in parentheses 95 % bootstrap intervals over images. One image weighs "
        f"{1 / len(test):.3f}: smaller differences between radii mean nothing.\n\n"
        f"{table}\n\n"
        f"Time of a prediction by the number of steps m, on one CPU thread in batches of "
        f"{len(test)}:\n\n{times}"
    )
    if options.paste:
        paste("radius", text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
