"""The paper's tables at CPU size, with the bundled models: one command, resumed at will.

    python examples/paper_study.py --images 500 --out runs/study --publish docs/study

runs every stage that is not there yet and writes `docs/study.md` from the result folders. Finished
work is kept in `runs/study/store`; the same command goes on where it was. Set CPR_WRAP_DATA to a
folder with the whole data sets for clean figures on 9,000 images and for CIFAR-10.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from study.document import write_document
from study.evaluate import Bench
from study.materials import Materials
from study.options import BUDGETS, STAGES, Options
from study.publish import publish
from study.stages import run


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default=",".join(STAGES), help="stages, with commas between")
    parser.add_argument("--budget", default="standard", choices=BUDGETS)
    parser.add_argument("--images", type=int, default=500, help="test images of the main table")
    parser.add_argument("--few", type=int, default=100, help="test images of the other stages")
    parser.add_argument("--check", type=int, default=20, help="of CPR, with more effort")
    parser.add_argument("--contrast", type=int, default=10, help="for the natural network")
    parser.add_argument("--clean", type=int, default=9000, help="test images for clean figures")
    parser.add_argument("--validation", type=int, default=1000, help="images for thresholds")
    parser.add_argument("--audit-images", type=int, default=8)
    parser.add_argument("--black-box-images", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--publish", type=Path, help="copy results there and write the document")
    parser.add_argument("--document", action="store_true", help="write the document and no more")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, materials: Materials | None = None) -> None:
    given = vars(parse(arguments))
    published, document = given.pop("publish"), given.pop("document")
    options = Options(**{**given, "only": tuple(given["only"].split(","))})
    if not document:
        bench = Bench(options, materials or Materials(), say)
        for stage in options.only:
            say(f"stage {stage}")
            for missing in run(bench, stage):
                say(f"missing: {missing}")
        if published is not None:
            publish(options.out, published)
    if published is not None:
        say(f"written: {write_document(published)}")


if __name__ == "__main__":
    main()
