"""Run the study; cells that are done are kept.

    CPR_WRAP_DATA=data python -m examples.study.run --work runs/study

Results with all points go to the working folder, whose store resumes a cell that was stopped.
Records without points are published in examples/results/study, from which examples/study/page.py
makes docs/study.md. `--only` runs the cells whose stage/name contains a text.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from cpr_wrap import audit, load_result, robustness_curve, save_result
from cpr_wrap.evaluation.result import RESULT
from cpr_wrap.metrics import About, RobustnessCurve
from examples.study.cells import Cell, cells, images

PUBLISHED = Path(__file__).parents[1] / "results" / "study"


def evaluate(cell: Cell, work: Path) -> RobustnessCurve:
    """Attack, audit and certify one cell."""
    model, data = cell.method.model(), images(cell.method.dataset, "test", cell.start, cell.num)
    curve = robustness_curve(
        model,
        data.images,
        data.labels,
        cell.eps,
        budget=cell.budget,
        indices=data.indices,
        block_size=min(100, cell.num),
        store=work / "store",
        certify=cell.certified,
    )
    about = About(
        name=cell.name,
        model=f"bundled:{cell.method.network}",
        dataset=cell.method.dataset,
        part="test",
        trained_eps=cell.method.trained_eps,
    )
    curve = replace(curve, about=about)
    return replace(curve, checks=audit(model, curve)) if cell.audited else curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for cell in cells():
        name = f"{cell.stage}/{cell.name}"
        if asked.only not in name or (PUBLISHED / name / RESULT).exists():
            continue
        begun = time.perf_counter()
        if (asked.work / name / RESULT).exists():
            curve = load_result(asked.work / name)
        else:
            curve = evaluate(cell, asked.work)
            save_result(curve, asked.work / name)
        # Without points and origins a result takes a hundredth of the room.
        save_result(replace(curve, points=None, origins=()), PUBLISHED / name)
        print(
            f"{name}: {curve.accuracy_at(0):.3f} at alpha 0, {curve.accuracy_at(1):.3f} at 1, "
            f"{curve.passes_per_image:,.0f} passes per image, {time.perf_counter() - begun:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
